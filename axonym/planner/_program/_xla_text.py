"""Patterns of XLA's and MLIR's private texts: all that the planner reads of them, in one place.

None of these formats is promised. Seen in jaxlib 0.12.0 for CPUs, in libtpu 0.0.50 for TPUs, and in jax-cuda12-plugin
0.12.0 for GPUs. Should a format change so that nothing matches, a loop counts as one turn, and
a source line or a time is left out; programs for TPUs are compiled to the end, not just until their memory is known.
"""

import re


# The optimized program, `compiled.as_text()`.

# A computation: `ENTRY %main (x: f32[8]) -> f32[8] {`. Groups: `ENTRY`, the name.
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
# The computation that a program starts with.
ENTRY = re.compile(r"^ENTRY ", re.MULTILINE)
# An instruction: `  ROOT %add.1 = f32[8]{0} add(%x, %y), metadata={}`. Groups: `ROOT`, name, shape, opcode, the rest.
INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
# Computations that an instruction calls: `calls=%fused`, `branch_computations={%a, %b}`. Groups: attribute, names.
CALLED = re.compile(r"\b(calls|body|condition|to_apply|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)")
# A name in such a list.
COMPUTATION_NAME = re.compile(r"[\w.\-]+")
# How often a loop runs, in its backend config.
TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# The comparison in the condition of a loop that counts up: `direction=LT`.
COUNTS_UP = re.compile(r"direction=L[TE]")
# Which element of a tuple `get-tuple-element` takes.
TUPLE_INDEX = re.compile(r"\bindex=(\d+)\b")
# The value of a constant, after its opcode: `constant(12)`.
CONSTANT = re.compile(r"(-?\d+)\)")
# An array in a shape: `bf16[4,128]`. Groups: dtype, sizes.
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
# An array with its layout: `f32[8]{0:T(128)S(5)}`.
ARRAY_WITH_LAYOUT = re.compile(r"\b[a-z]\w*\[[\d,]*\](?:\{[^{}]*\})?")
# A layout or a comment in a shape, either of which may hold brackets.
LAYOUT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")
# The memory space in a layout: `S(5)`; none for the memory of the device.
MEMORY_SPACE = re.compile(r"S\((\d+)\)")
# An operand: `%add.1`, or an element of a tuple as libtpu 0.0.50 writes it, `%loop#2`.
OPERAND = re.compile(r"%([\w.\-#]+)")
TUPLE_ELEMENT = re.compile(r"%([\w.\-]+)#(\d+)")
# The path of JAX's scopes and transformations in the metadata.
OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
# A compiled function in that path: `jit(_roll_static)`.
COMPILED_FUNCTION = re.compile(r"\bjit\(([^()]*)\)")
# The number of a collective; it is the same at all places where that collective is written. All that are written in
# `jax.shard_map` have number 1; libtpu then tells those apart that it writes at several places.
CHANNEL = re.compile(r"channel_id=(\d+)")
CHAIN = re.compile(r'chain_id="(\d+)"')
# Where the line of the source is: a frame of the tables below the program.
STACK_FRAME = re.compile(r"stack_frame_id=(\d+)")
# A row of these tables: `3 {file_name_id=1 function_name_id=2 line=40 ...}`.
SOURCE_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
TABLE_ROW = re.compile(r"^(\d+) (.*)$")

# Collectives in the optimized program.

# Marks collectives that the partitioner has inserted: their `op_name` is that of their operand, not of their user.
IS_INSERTED = 'is_spmd_generated="true"'
# libtpu's name for the fusion of an all-reduce with the slices of its result.
ALL_REDUCE_SCATTER = "all-reduce-scatter"
# The dimension that an all-gather makes whole.
GATHERED_DIMENSION = re.compile(r"\bdimensions=\{(\d+)\}")
# Groups of devices as lists, `{{0,1},{2,3}}`; their members.
GROUP_LISTS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
GROUP_MEMBERS = re.compile(r"\{([\d,]*)\}")
# As a range that is reshaped and transposed, `[4,2]<=[2,4]T(1,0)`. Groups: shape of the groups, sizes, order.
GROUP_RANGE = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# As axes of a mesh, `mesh['axis_0'=2,'axis_1'=4] {'axis_0'}`. Groups: mesh, sizes and order of its devices, axes.
GROUP_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? ?\{([^}]*)\}"
)
# An axis of such a mesh: `'axis_0'=2`.
MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
# An axis of a group: `'axis_0'`, or a part of one, `'axis_1':(2)2`.
GROUP_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
# The devices that a permutation sends from and to, `{{0,1},{1,0}}`.
PERMUTATION = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
PERMUTATION_PAIR = re.compile(r"\{(\d+),(\d+)\}")
# An exchange between slices, in a `send` or `recv` of libtpu. Groups: what the two have in common, the collective.
SLICE_TRANSFER = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)".*_xla_megascale_transfer_type="([^"]*)"')

# Times and kernels in the optimized program.

# libtpu's estimate of an instruction's cycles, in its backend config. The largest integer is for one that has none.
ESTIMATED_CYCLES = re.compile(rf'"estimated_cycles":"(?!{2**63 - 1}")(\d+)"')
# A Pallas kernel on TPUs, the shapes of its operands, and names that kernels of attention have.
TPU_KERNEL = 'custom_call_target="tpu_custom_call"'
KERNEL_OPERANDS = re.compile(r"operand_layout_constraints=\{((?:[^{}]|\{[^{}]*\})*)\}")
ATTENTION_KERNEL = re.compile(r"attention|splash|flash|mha")
# The sizes of the tiles that libtpu's kernel of `ragged_dot` multiplies: of rows, of what is summed, of columns.
RAGGED_DOT_TILES = re.compile(r'ragged_dot_tiling="(\d+),(\d+),(\d+)"')
# What the author of a Pallas kernel says of it: floating-point operations, and bytes that it moves.
COST_ESTIMATE = re.compile(r'"cost_estimate":\{"flops":"?(\d+)[^}]*?"bytes_accessed":"?(\d+)')
# A product of cuBLAS.
CUBLAS_CALL = 'custom_call_target="__cublas'
# A convolution of cuDNN, such as `__cudnn$convForward`, and the dimensions of its kernel, such as `01io`.
CUDNN_CONVOLUTION = re.compile(r'custom_call_target="__cudnn\$conv(\w+)"')
KERNEL_DIMS = re.compile(r"dim_labels=\w+_(\w+)->")
# The dimensions that a product sums over: of a `dot`, or in the backend config of cuBLAS.
CONTRACTED_DIMS = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)[}\]]')

# The path in `op_name`, which JAX writes.

# What stands between the axes in the scope of an operation of Axonym, such as `dot(batch, embed -> mlp)`; the scope
# itself is `AXES_SCOPE` in `report/_time_by_layer.py`.
AXES_SEPARATOR = re.compile(r" -> |, ")
# The axes of the results in such a scope: `mlp`.
RESULT_AXES = re.compile(r"-> ([^()]*)\)")
# The scope that `nn.ragged_dot` gives to a product: how many rows are of groups on this device, and how many there are.
EXPECTED_ROWS = r"rows\((\d+) of {rows}\)"
# The name of the argument before its path, for a parameter of the program: `state` of `state.opt['mu'].array`.
ARGUMENT_NAME = re.compile(r"^[^.\[]*")

# Other texts of the compilers.

# libtpu's buffer assignment: `allocation 3: size 1024, parameter 0, ... color 5:`. Groups: size, the rest.
ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(.*):$", re.MULTILINE)
ALLOCATION_PARAMETER = re.compile(r", parameter (\d+)")
ALLOCATION_COLOR = re.compile(r", color (\d+)")
# The partitioner's warning in the error stream. Groups: sharding before and after, shape, the rest of the instruction.
REMATERIALIZATION = re.compile(
    r"\[SPMD\] Involuntary full rematerialization\. The compiler (?:cannot|was not able to) go from sharding "
    r"(\{.*?\}) to (\{.*?\}) .*?for HLO operation:? %?[\w.\-]+ = (\S+) (.*)"
)
# A lowered program in MLIR's text: the definition of a location, and references to it.
LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)\n?", re.MULTILINE)
LOCATION_REFERENCE = re.compile(r"#loc\d*")
# A dimension over a mesh axis in the sharding of an argument, in Shardy's words and in GSPMD's.
SHARDED_DIMENSION = re.compile(r'\{"|devices=')


def read_field(text: str, name: str) -> int:
    """Returns the number of a field in a row of the tables, such as `line=40`; 0 if it is not there."""
    match = re.search(rf"\b{name}=(\d+)", text)
    return int(match[1]) if match else 0

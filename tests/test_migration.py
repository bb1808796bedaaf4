"""What users of Haliax find here: every public name of its arrays, but for those that the migration page explains."""

import pytest

import axonym as nym


# The public names of Haliax 1.4 that concern arrays, by namespace.
NAMES = {
    "": """
        Axis AxisSelection AxisSelector AxisSpec PartialAxisSpec NamedArray ScanCheckpointPolicy
        axis_size axis_spec_to_tuple concat_axes concat_axis_specs eliminate_axes is_named_array replace_axis
        resolve_axis selects_axis to_jax_shape union_axes
        abs absolute add all allclose amax amin angle any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh
        argmax argmin argsort around array_equal array_equiv auto_sharded axis axis_mapping axis_name bincount
        bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
        bitwise_xor broadcast_arrays broadcast_axis broadcast_to cbrt ceil clip concatenate conj conjugate copy cos
        cosh cumprod cumsum dblock deg2rad degrees divide divmod dot ds dslice einsum equal exp exp2 expm1 fabs field
        fix flatten flatten_axes float_power floor floor_divide fmax fmin fmod fold freeze frexp fsdp full full_like
        geomspace get greater greater_equal hypot i0 imag index invert iscomplex isclose isfinite isinf isnan isneginf
        isposinf isreal left_shift less less_equal linspace log log10 log1p log2 logaddexp logaddexp2 logical_and
        logical_not logical_or logical_xor logspace make_axes map max maximum mean min minimum mod multiply named
        named_jit nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmin nanprod nanstd nansum nanvar ndim
        negative new_ref nextafter nn nonzero not_equal ones ones_like packbits pad pad_left positive power prod
        product ptp rad2deg radians random ravel real rearrange reciprocal remainder rename repeat right_shift rint
        roll round rsqrt scan searchsorted set_mesh shard sign signbit sin sinc sinh slice sort split sqrt square stack
        std subtract sum swap take tan tanh tile top_k trace tree tree_checkpoint_name tree_util tril triu true_divide
        trunc unbind unflatten_axis unique unique_all unique_counts unique_inverse unique_values unpackbits
        updated_slice var vmap where zeros zeros_like
        """,
    "axis": """
        Axis AxisSelection AxisSelector AxisSpec PartialAxisSpec PartialShapeDict ShapeDict axis_name axis_size
        axis_spec_to_shape_dict axis_spec_to_tuple concat_axes concat_axis_specs dblock ds dslice eliminate_axes
        intersect_axes is_axis_compatible make_axes rearrange_for_partial_order replace_axis
        replace_missing_with_ellipsis resolve_axis selects_axis to_jax_shape union_axes unsize_axes without_axes
        """,
    "fft": "fft fftfreq fftshift hfft ifft ifftshift ihfft irfft rfft rfftfreq",
    "partitioning": """
        PhysicalAxisSpec ResourceMapping auto_sharded axis_mapping current_thread_local_mapping fsdp
        infer_resource_partitions named_jit physical_axis_name physical_axis_size pspec_for pspec_for_axis
        round_axis_for_partitioning shard shard_with_axis_mapping sharding_for_axis
        """,
    "poly": "poly polyadd polyder polydiv polyfit polyint polymul polysub polyval roots trim_zeros vander",
    "random": """
        ball bernoulli beta categorical cauchy choice exponential gamma gumbel laplace loggamma logistic normal pareto
        permutation poisson rademacher randint t truncated_normal uniform weibull_min
        """,
    "tree": "flatten leaves map scan_aware_map structure unflatten",
    "tree_util": """
        resize_axis scan_aware_tree_map tree_flatten tree_leaves tree_map tree_structure tree_unflatten
        """,
    "nn": """
        elu gelu glu hard_tanh leaky_relu log_sigmoid log_softmax logsumexp relu relu6 sigmoid silu softmax softplus
        swish
        """,
    "NamedArray": """
        all any argmax argmin argsort array astype at axes axis_indices axis_size broadcast_axis broadcast_to clip conj
        conjugate copy cumprod cumsum dot dtype flatten flatten_axes has_axis imag item matches_axes max mean min
        nbytes ndim prod product ptp ravel real rearrange rename resolve_axis round scalar shape size slice sort split
        std sum take tobytes tolist trace unbind unflatten_axis updated_slice var
        """,
}


@pytest.mark.parametrize("namespace", NAMES, ids=lambda name: name or "axonym")
def test_every_public_name_is_here(namespace: str):
    here = getattr(nym, namespace) if namespace else nym
    missing = [name for name in NAMES[namespace].split() if not hasattr(here, name)]
    assert not missing

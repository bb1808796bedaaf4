"""Makes and describes meshes of devices, hosts and slices; built on JAX alone."""

from ._abstract import create_abstract_mesh as create_abstract_mesh
from ._cpu import cpu_context as cpu_context, create_cpu_mesh as create_cpu_mesh, force_cpu as force_cpu
from ._create import create_mesh as create_mesh, parse_mesh_from_string as parse_mesh_from_string
from ._describe import MeshDescription as MeshDescription, describe_mesh as describe_mesh
from ._device_grid import MeshAxis as MeshAxis, MeshDevice as MeshDevice
from ._set_mesh import set_mesh as set_mesh
from ._topology import calculate_host_mesh_shape as calculate_host_mesh_shape

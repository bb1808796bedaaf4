"""Makes and describes meshes of devices, hosts and slices; built on JAX alone."""

from ._create import (
    cpu_context as cpu_context,
    create_abstract_mesh as create_abstract_mesh,
    create_cpu_mesh as create_cpu_mesh,
    create_mesh as create_mesh,
    force_cpu as force_cpu,
    parse_mesh_from_string as parse_mesh_from_string,
    set_mesh as set_mesh,
)
from ._describe import (
    MeshAxis as MeshAxis,
    MeshDescription as MeshDescription,
    MeshDevice as MeshDevice,
    describe_mesh as describe_mesh,
)
from ._device_layout import calculate_host_mesh_shape as calculate_host_mesh_shape

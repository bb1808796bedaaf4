"""From devices to a mesh: the public list of what makes a `jax.sharding.Mesh`.

This part knows about devices, hosts and slices, and about nothing else: it imports JAX alone. Every
mesh has exactly the axes and sizes that were asked for, or making it is an error that says which
sizes would have fitted.
"""

from ._abstract import create_abstract_mesh as create_abstract_mesh
from ._cpu import (
    cpu_context as cpu_context,
    create_cpu_mesh as create_cpu_mesh,
    force_cpu as force_cpu,
)
from ._create import (
    create_mesh as create_mesh,
    parse_mesh_from_string as parse_mesh_from_string,
)
from ._describe import (
    MeshDescription as MeshDescription,
    describe_mesh as describe_mesh,
)
from ._device_grid import (
    MeshAxis as MeshAxis,
    MeshDevice as MeshDevice,
)
from ._set_mesh import set_mesh as set_mesh
from ._topology import calculate_host_mesh_shape as calculate_host_mesh_shape

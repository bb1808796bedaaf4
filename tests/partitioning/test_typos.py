"""Names that differ by a slip of a typist are warned of, and names that differ on purpose are not."""

import warnings

import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import axonym as nym


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("bacth", "batch"),
        ("batc", "batch"),
        ("Embed", "embed"),
        ("embbed", "embed"),
        ("tokne", "token"),
        ("sequance", "sequence"),
        ("hidden_dmi", "hidden_dim"),
        ("atoken_embd", "atoken_embed"),
        ("mpl", "mlp"),
        ("esq", "seq"),
    ],
)
def test_a_near_miss_warns_once(name, known):
    text = (
        f"^axis '{name}' is replicated: the mapping has no '{name}', but has '{known}'; correct the name, or map "
        f"'{name}' to None$"
    )
    with pytest.warns(RuntimeWarning, match=text) as caught:
        assert nym.pspec_for_axis((name, "pos"), {known: "data"}) == P(None, None)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nym.pspec_for_axis((name, "key_pos"), {known: "model", "mlp": "data"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("pos", "key_pos"),
        ("head", "heads"),
        ("q_head", "q_heads"),
        ("heads_per", "head_per"),
        ("mlp", "mlp2"),
        ("layer1", "layer2"),
        ("embed", "embedding"),
        ("patch", "batch"),
        ("stage", "state"),
        ("head_q", "head_k"),
        ("head_k", "head_kv"),
        ("qhead", "head"),
        ("my_qhead", "my_head"),
        ("queryx", "queryy"),
        ("x", "y"),
        ("row", "raw"),
        ("h12", "h21"),
        ("dim", "dims"),
        ("mlp", "mla"),
    ],
)
def test_names_that_differ_on_purpose_do_not_warn(one, other):
    for name, known in ((one, other), (other, one)):
        assert nym.pspec_for_axis(name, {known: "data"}) == P(None)


@pytest.mark.parametrize(
    ("axis", "known"), [("dta", "data"), ("modle", "model"), ("Data", "data"), ("tesnor", "tensor"), ("fspd", "fsdp")]
)
def test_a_slip_in_a_mesh_axis_warns_once(axis, known):
    mesh = AbstractMesh((2, 2), ("batch", known), axis_types=(AxisType.Auto,) * 2)
    text = rf"axis 'mlp' is mapped to mesh axis '{axis}', which the mesh .*; did you mean '{known}'\?"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        for batch in (2, 4):
            nym.sharding_for_axis(nym.Axis("batch", batch), {"batch": "batch", "mlp": axis}, mesh)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("axis", "known"), [("dp", "fsdp"), ("tp", "sp"), ("fsdp", "dp"), ("data", "data2"), ("datas", "data"), ("x", "y")]
)
def test_mesh_axes_of_other_meshes_do_not_warn(axis, known):
    mesh = AbstractMesh((2, 2), ("batch", known), axis_types=(AxisType.Auto,) * 2)
    assert nym.sharding_for_axis("batch", {"batch": "batch", "mlp": axis}, mesh).spec == P("batch")

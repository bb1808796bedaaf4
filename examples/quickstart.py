"""A two-layer network on scikit-learn's digits, sharded over eight devices by the names of its axes."""

import equinox as eqx
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import axonym as nym


jax.config.update("jax_num_cpu_devices", 8)  # eight virtual CPU devices; ignored on GPUs and TPUs
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(1792)
x = nym.named(images[order] / 16, ("batch", "pixel"))
y = nym.named(labels[order], "batch")
optimizer = optax.adam(1e-2)


def compute_loss(model, x, y):
    return nym.nn.cross_entropy_loss(model(x), "label", y).scalar()


@nym.named_jit
def step(model, state, x, y):
    loss, gradients = jax.value_and_grad(compute_loss)(model, x, y)
    updates, state = optimizer.update(gradients, state)
    return eqx.apply_updates(model, updates), state, loss


mesh = nym.create_mesh((-1, 1 if jax.device_count() == 1 else 2), ("data", "model"))
with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", "mlp": "model"}):  # `mlp`: hidden axis of nn.MLP
    model = nym.nn.MLP.init(nym.Axis("pixel", 64), nym.Axis("label", 10), width=128, depth=1, key=jax.random.key(0))
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    train_x, train_y = nym.shard((x["batch", :1408], y["batch", :1408]))
    for i in range(100):
        model, state, loss = step(model, state, train_x, train_y)
        print(f"step {i + 1}: loss {loss:.3f}", end="\r")  # waits for the step to finish
    accuracy = (model(x["batch", 1408:]).argmax("label") == y["batch", 1408:]).mean()
    print(f"\nweight: {eqx.tree_pformat(model.layers[0].weight)}\ntest accuracy: {accuracy.item():.1%}")

"""The updates of `x.at[...]`, as functions of the old elements and the value in NumPy."""

import numpy as np


UPDATES = {
    "set": lambda old, new: np.broadcast_to(new, old.shape),
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "min": np.minimum,
    "max": np.maximum,
}

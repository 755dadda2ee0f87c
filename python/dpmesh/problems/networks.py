"""The papers' networks as pure JAX functions, for `JaxProblem`; they need the extra ``jax``.

```python
model = convolutional((28, 28, 1))
JaxProblem(train, parts, *model, test=test, record_shape=(28, 28, 1))
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dpmesh._validate import fail, integer

Layer = dict[str, Array]
"""The arrays of a layer: its kernel and its bias."""

Params = dict[str, Any]
"""Layers, or arrays, by name."""


class Model(NamedTuple):
    """The functions of a model, in the order of `JaxProblem`'s arguments."""

    start: Callable[[Array], Params]
    loss: Callable[[Params, Array, Array], Array]
    scores: Callable[[Params, Array], Array]


def convolutional(
    image_shape: tuple[int, int, int],
    *,
    classes: int = 10,
    channels: tuple[int, int] = (64, 128),
    hidden: tuple[int, int] = (384, 192),
) -> Model:
    """The federated paper's network: two 5 x 5 convolutions with max-pooling, two dense layers.

    Parameters
    ----------
    image_shape
        Height, width, channels of an image; (32, 32, 3) gives the paper's 3.4 million parameters.
    classes, channels, hidden
        Widths of the layers.

    Raises
    ------
    ValueError
        If a size is not an integer of at least 1 (of 2 for `classes`).
    """
    _check_sizes("image_shape", image_shape, 3)
    _check_sizes("channels", channels, 2)
    _check_sizes("hidden", hidden, 2)
    integer("classes", classes, at_least=2)
    height, width, depth = image_shape
    kernels = {
        "conv1": (5, 5, depth, channels[0]),
        "conv2": (5, 5, *channels),
        "dense1": (-(-height // 4) * -(-width // 4) * channels[1], hidden[0]),
        "dense2": hidden,
        "output": (hidden[1], classes),
    }

    def scores(params: Params, image: Array) -> Array:
        x = image
        for name in ("conv1", "conv2"):
            padded = jnp.pad(x, ((2, 2), (2, 2), (0, 0)))
            x = _halved(jax.nn.relu(_linear(params[name], _patches(padded))))
        x = x.ravel()
        for name in ("dense1", "dense2"):
            x = jax.nn.relu(_linear(params[name], x))
        return _linear(params["output"], x)

    return Model(_start(kernels), cross_entropy(scores), scores)


def strided_convolutional(
    image_shape: tuple[int, int, int], *, classes: int = 10, channels: tuple[int, int] = (8, 16)
) -> Model:
    """Two 5 x 5 convolutions of stride 2 and a linear layer; small, with fast per-record gradients.

    Convolutions are products with patches, which makes the per-record gradients that clipping needs
    several times faster on a CPU.

    Parameters
    ----------
    image_shape
        Height, width, channels of an image, at least 13 by 13.
    classes, channels
        Widths of the layers.

    Raises
    ------
    ValueError
        If an image is too small, or a size is not an integer of at least 1 (of 2 for `classes`).
    """
    _check_sizes("image_shape", image_shape, 3)
    _check_sizes("channels", channels, 2)
    integer("classes", classes, at_least=2)
    height, width, depth = image_shape
    if min(height, width) < 13:
        fail("image_shape", "a height and a width of at least 13", image_shape)
    places = prod(((side - 3) // 2 - 3) // 2 for side in (height, width))
    kernels = {
        "conv1": (5, 5, depth, channels[0]),
        "conv2": (5, 5, *channels),
        "output": (places * channels[1], classes),
    }

    def scores(params: Params, image: Array) -> Array:
        x = image
        for name in ("conv1", "conv2"):
            x = jax.nn.relu(_linear(params[name], _patches(x, stride=2)))
        return _linear(params["output"], x.ravel())

    return Model(_start(kernels), cross_entropy(scores), scores)


def recurrent(characters: int, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> Model:
    """An embedding, layers of LSTM, a linear layer: the next character of a text (section 6.3).

    Parameters
    ----------
    characters
        Number of distinct characters; a record is a row of their codes, its label the next code.
    embedding, hidden, layers
        Widths and number of the layers.

    Raises
    ------
    ValueError
        If a size is not an integer of at least 1 (of 2 for `characters`).
    """
    integer("characters", characters, at_least=2)
    integer("embedding", embedding, at_least=1)
    integer("hidden", hidden, at_least=1)
    integer("layers", layers, at_least=1)

    def start(key: Array) -> Params:
        first, last, *keys = jax.random.split(key, layers + 2)
        widths = [embedding] + [hidden] * layers
        params: Params = {
            "embedding": jax.random.normal(first, (characters, embedding)),
            "output": _dense(last, (hidden, characters)),
        }
        for i, layer_key in enumerate(keys):
            params[f"lstm{i}"] = _dense(layer_key, (widths[i] + hidden, 4 * hidden))
        return params

    def scores(params: Params, codes: Array) -> Array:
        x = params["embedding"][codes.astype(int)]
        for i in range(layers):
            x = _lstm(params[f"lstm{i}"], x, hidden)
        return _linear(params["output"], x[-1])

    return Model(start, cross_entropy(scores), scores)


def last_layers(model: Model, public: Params, layers: Sequence[str]) -> Model:
    """Return a model in which these layers learn, and all others stay as they are in public.

    Parameters
    ----------
    model
        Functions of a mapping from names of layers to their arrays, as all models here are.
    public
        Its parameters, of public data alone: they are known to all, and no noise covers them.
    layers
        Names of the layers that learn, which start as they are in `public`.

    Raises
    ------
    ValueError
        If there is no layer, or none of that name.
    """
    chosen = _layers(public, layers)

    def start(key: Array) -> Params:  # noqa: ARG001
        return {name: public[name] for name in chosen}

    return _adapted(model, start, lambda learned: {**public, **learned})


def low_rank(model: Model, public: Params, layers: Sequence[str], *, rank: int) -> Model:
    """Return a model in which an update of low rank of each of these kernels learns (LoRA).

    A kernel of shape (.., outputs) becomes ``kernel + reshape(a @ b)`` with `rank` columns of a.
    The first b is 0, so that all start from the public model; biases stay as they are.

    Parameters
    ----------
    model, public, layers
        As for `last_layers`; a layer is a mapping with a ``kernel``.
    rank
        At least 1.

    Raises
    ------
    ValueError
        If there is no layer, or none of that name, or `rank` is not an integer of at least 1.
    """
    chosen = _layers(public, layers)
    integer("rank", rank, at_least=1)
    shapes = {name: jnp.shape(public[name]["kernel"]) for name in chosen}

    def start(key: Array) -> Params:
        params = {}
        for weight_key, (name, shape) in zip(
            jax.random.split(key, len(shapes)), shapes.items(), strict=True
        ):
            inputs = prod(shape[:-1])
            a = jax.random.normal(weight_key, (inputs, rank)) / jnp.sqrt(inputs)
            params[name] = {"a": a, "b": jnp.zeros((rank, shape[-1]))}
        return params

    def adapt(factors: Params) -> Params:
        adapted = dict(public)
        for name, shape in shapes.items():
            update = (factors[name]["a"] @ factors[name]["b"]).reshape(shape)
            adapted[name] = {**public[name], "kernel": public[name]["kernel"] + update}
        return adapted

    return _adapted(model, start, adapt)


def _adapted(model: Model, start: Callable[[Array], Params], adapt: Callable[..., Params]) -> Model:
    """Return a model of few parameters, from which `adapt` makes those of `model`."""
    return Model(
        start,
        lambda params, features, label: model.loss(adapt(params), features, label),
        lambda params, features: model.scores(adapt(params), features),
    )


def _layers(public: Params, layers: Sequence[str]) -> list[str]:
    """Return the names of layers, each of which the public model has."""
    chosen = [layers] if isinstance(layers, str) else list(layers)
    if not chosen or not set(chosen) <= set(public):
        fail("layers", f"some of {', '.join(public)}", chosen)
    return chosen


def cross_entropy(
    scores: Callable[[Params, Array], Array],
) -> Callable[[Params, Array, Array], Array]:
    """Return the loss ``-log softmax(scores)[label]`` of one record."""

    def loss(params: Params, features: Array, label: Array) -> Array:
        return -jax.nn.log_softmax(scores(params, features))[label]

    return loss


def _check_sizes(name: str, sizes: Sequence[int], count: int) -> None:
    """Fail unless these are `count` integers of at least 1."""
    if not isinstance(sizes, Sequence) or len(sizes) != count:
        fail(name, f"{count} sizes", sizes)
    for size in sizes:
        integer(name, size, at_least=1)


def _patches(image: Array, *, stride: int = 1) -> Array:
    """Return the 5 x 5 squares of an image: (rows, columns, 25 depth).

    A convolution is their product with the kernel. For many nodes, each with its own kernel,
    compilers turn this into one batched matrix product, but `lax.conv` into slow convolutions one
    by one.
    """
    rows, columns = (side - 4 for side in image.shape[:2])
    shifted = [
        image[i : i + rows : stride, j : j + columns : stride] for i in range(5) for j in range(5)
    ]
    return jnp.concatenate(shifted, axis=2)


def _halved(image: Array) -> Array:
    """Return the largest values of 2 x 2 pixels; an odd side is padded."""
    height, width, depth = image.shape
    fill = ((0, height % 2), (0, width % 2), (0, 0))
    padded = jnp.pad(image, fill, constant_values=-jnp.inf)
    return padded.reshape(-(-height // 2), 2, -(-width // 2), 2, depth).max(axis=(1, 3))


def _dense(key: Array, shape: tuple[int, ...]) -> Layer:
    """Return a kernel with entries of variance 1 / inputs, and a bias of 0."""
    kernel = jax.random.normal(key, shape) / jnp.sqrt(prod(shape[:-1]))
    return {"kernel": kernel, "bias": jnp.zeros(shape[-1])}


def _start(kernels: dict[str, tuple[int, ...]]) -> Callable[[Array], Params]:
    """Return the function that draws layers with kernels of these shapes."""

    def start(key: Array) -> Params:
        keys = jax.random.split(key, len(kernels))
        weights = map(_dense, keys, kernels.values())
        return dict(zip(kernels, weights, strict=True))

    return start


def _linear(layer: Layer, x: Array) -> Array:
    """Return what a layer makes of its inputs, the last axis of x or patches of an image."""
    kernel = layer["kernel"]
    return x @ kernel.reshape(-1, kernel.shape[-1]) + layer["bias"]


def _lstm(params: Layer, inputs: Array, hidden: int) -> Array:
    """Return the outputs (length, hidden) of one layer; forget gates start nearly open."""

    def advance(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        gates = _linear(params, jnp.concatenate([x, h]))
        i, f, g, o = jnp.split(gates, 4)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros(hidden)
    return jax.lax.scan(advance, (zeros, zeros), inputs)[1]

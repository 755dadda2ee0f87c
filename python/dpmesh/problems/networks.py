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

KERNEL_SIDE = 5
"""Height and width of the kernels of all convolutions, in pixels."""

LEAST_SIDE = 13
"""Least height and width of an image for two convolutions of stride 2 without padding.

A side of 13 leaves (13 - 3) // 2 = 5 pixels after the first and (5 - 3) // 2 = 1 after the second.
"""

Layer = dict[str, Array]
"""A layer: ``kernel``, shape (.., outputs), and ``bias``, shape (outputs,)."""

Params = dict[str, Any]
"""Parameters of a model: layers, or arrays, by name."""

Scores = Callable[[Params, Array], Array]
"""Function of parameters and the features of one record: its scores, shape (classes,)."""

Loss = Callable[[Params, Array, Array], Array]
"""Function of parameters, the features and the label of one record: its loss, a number."""


class Model(NamedTuple):
    """The functions of a model, in the order of `JaxProblem`'s arguments.

    Attributes
    ----------
    start
        Draws the first parameters from a JAX key.
    loss
        Loss of one record.
    scores
        Scores of one record.
    """

    start: Callable[[Array], Params]
    loss: Loss
    scores: Scores


def convolutional(
    image_shape: tuple[int, int, int],
    *,
    classes: int = 10,
    channels: tuple[int, int] = (64, 128),
    hidden: tuple[int, int] = (384, 192),
) -> Model:
    """The federated paper's network: two 5 x 5 convolutions with max-pooling, two dense layers.

    A convolution keeps the size of the image; max-pooling then halves both sides, rounded up. A
    linear layer gives the scores.

    Parameters
    ----------
    image_shape
        Height, width and channels of an image; (32, 32, 3) gives the paper's 3.4 million
        parameters.
    classes
        Number of scores.
    channels
        Output channels of both convolutions.
    hidden
        Outputs of both dense layers.

    Raises
    ------
    ValueError
        If a size is not an integer of at least 1 (of 2 for `classes`).
    """
    _check_sizes("image_shape", image_shape, 3)
    _check_sizes("channels", channels, 2)
    _check_sizes("hidden", hidden, 2)
    integer("classes", classes, at_least=2)
    height, width, image_channels = image_shape
    pooled_pixels = _half(_half(height)) * _half(_half(width))
    kernel_shapes = {
        "conv1": (KERNEL_SIDE, KERNEL_SIDE, image_channels, channels[0]),
        "conv2": (KERNEL_SIDE, KERNEL_SIDE, *channels),
        "dense1": (pooled_pixels * channels[1], hidden[0]),
        "dense2": hidden,
        "output": (hidden[1], classes),
    }
    margin = (KERNEL_SIDE // 2, KERNEL_SIDE // 2)  # keeps the size of the image

    def scores(params: Params, image: Array) -> Array:
        x = image
        for name in ("conv1", "conv2"):
            padded = jnp.pad(x, (margin, margin, (0, 0)))
            convolved = jax.nn.relu(_linear(params[name], _patches(padded)))
            x = _max_pooled(convolved)
        x = x.ravel()
        for name in ("dense1", "dense2"):
            x = jax.nn.relu(_linear(params[name], x))
        return _linear(params["output"], x)

    return Model(_start(kernel_shapes), cross_entropy(scores), scores)


def strided_convolutional(
    image_shape: tuple[int, int, int], *, classes: int = 10, channels: tuple[int, int] = (8, 16)
) -> Model:
    """Two 5 x 5 convolutions of stride 2 and a linear layer; small, with fast per-record gradients.

    Convolutions are products with patches, which makes the per-record gradients that clipping needs
    several times faster on a CPU.

    Parameters
    ----------
    image_shape
        Height, width and channels of an image, at least 13 by 13 pixels.
    classes
        Number of scores.
    channels
        Output channels of both convolutions.

    Raises
    ------
    ValueError
        If an image is too small, or a size is not an integer of at least 1 (of 2 for `classes`).
    """
    _check_sizes("image_shape", image_shape, 3)
    _check_sizes("channels", channels, 2)
    integer("classes", classes, at_least=2)
    height, width, image_channels = image_shape
    if min(height, width) < LEAST_SIDE:
        fail("image_shape", f"a height and a width of at least {LEAST_SIDE}", image_shape)
    pixels = _strided(_strided(height)) * _strided(_strided(width))
    kernel_shapes = {
        "conv1": (KERNEL_SIDE, KERNEL_SIDE, image_channels, channels[0]),
        "conv2": (KERNEL_SIDE, KERNEL_SIDE, *channels),
        "output": (pixels * channels[1], classes),
    }

    def scores(params: Params, image: Array) -> Array:
        x = image
        for name in ("conv1", "conv2"):
            x = jax.nn.relu(_linear(params[name], _patches(x, stride=2)))
        return _linear(params["output"], x.ravel())

    return Model(_start(kernel_shapes), cross_entropy(scores), scores)


def recurrent(characters: int, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> Model:
    """An embedding, layers of LSTM, a linear layer: the next character of a text.

    Section 6.3 of the federated paper trains it on the plays of Shakespeare.

    Parameters
    ----------
    characters
        Number of distinct characters; a record is a row of their codes, its label the next code.
    embedding
        Length of the vector of a character.
    hidden
        Outputs of each LSTM layer.
    layers
        Number of LSTM layers.

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
        embedding_key, output_key, *layer_keys = jax.random.split(key, layers + 2)
        input_widths = [embedding] + [hidden] * (layers - 1)
        params: Params = {
            "embedding": jax.random.normal(embedding_key, (characters, embedding)),
            "output": _dense(output_key, (hidden, characters)),
        }
        for i, (layer_key, inputs) in enumerate(zip(layer_keys, input_widths, strict=True)):
            params[f"lstm{i}"] = _dense(layer_key, (inputs + hidden, 4 * hidden))  # 4 gates
        return params

    def scores(params: Params, codes: Array) -> Array:
        x = params["embedding"][codes.astype(int)]
        for i in range(layers):
            x = _lstm(params[f"lstm{i}"], x, hidden)
        last_output = x[-1]
        return _linear(params["output"], last_output)

    return Model(start, cross_entropy(scores), scores)


def last_layers(model: Model, public: Params, layers: Sequence[str]) -> Model:
    """Return a model of which only these layers learn; all others keep their public parameters.

    Parameters
    ----------
    model
        A model whose parameters are layers by name, such as those of this module.
    public
        Parameters of the model, from public data alone: no noise covers them.
    layers
        Names of the layers that learn; they start from `public`.

    Raises
    ------
    ValueError
        If there is no layer, or none of that name.
    """
    learned_layers = _checked_layers(public, layers)

    def start(key: Array) -> Params:  # noqa: ARG001
        return {name: public[name] for name in learned_layers}

    return _adapted(model, start, lambda learned: {**public, **learned})


def low_rank(model: Model, public: Params, layers: Sequence[str], *, rank: int) -> Model:
    """Return a model of which only updates of low rank of these layers' kernels learn (LoRA).

    A kernel of shape (.., outputs) becomes ``kernel + reshape(a @ b)``, where a has shape (inputs,
    rank) and b (rank, outputs). The first b is 0, so that training starts from the public model;
    biases keep their public values (Hu et al., LoRA: low-rank adaptation of large language models,
    2022).

    Parameters
    ----------
    model, public, layers
        As for `last_layers`; a layer is a mapping with a ``kernel``.
    rank
        Rank of each update, at least 1.

    Raises
    ------
    ValueError
        If there is no layer, or none of that name, or `rank` is not an integer of at least 1.
    """
    adapted_layers = _checked_layers(public, layers)
    integer("rank", rank, at_least=1)
    kernel_shapes = {name: jnp.shape(public[name]["kernel"]) for name in adapted_layers}

    def start(key: Array) -> Params:
        factors = {}
        layer_keys = jax.random.split(key, len(kernel_shapes))
        for layer_key, (name, shape) in zip(layer_keys, kernel_shapes.items(), strict=True):
            inputs = prod(shape[:-1])
            outputs = shape[-1]
            a = jax.random.normal(layer_key, (inputs, rank)) / jnp.sqrt(inputs)
            factors[name] = {"a": a, "b": jnp.zeros((rank, outputs))}
        return factors

    def adapt(factors: Params) -> Params:
        params = dict(public)
        for name, shape in kernel_shapes.items():
            product = factors[name]["a"] @ factors[name]["b"]
            kernel = public[name]["kernel"] + product.reshape(shape)
            params[name] = {**public[name], "kernel": kernel}
        return params

    return _adapted(model, start, adapt)


def _adapted(model: Model, start: Callable[[Array], Params], adapt: Callable[..., Params]) -> Model:
    """Return a model of few learned parameters.

    Parameters
    ----------
    model
        The model of all parameters.
    start
        Draws the learned parameters from a JAX key.
    adapt
        Makes all parameters of `model` from the learned ones.
    """

    def loss(learned: Params, features: Array, label: Array) -> Array:
        return model.loss(adapt(learned), features, label)

    def scores(learned: Params, features: Array) -> Array:
        return model.scores(adapt(learned), features)

    return Model(start, loss, scores)


def _checked_layers(public: Params, layers: Sequence[str]) -> list[str]:
    """Return the names of layers; fail unless the public model has each of them."""
    names = [layers] if isinstance(layers, str) else list(layers)
    if not names or not set(names) <= set(public):
        fail("layers", f"some of {', '.join(public)}", names)
    return names


def cross_entropy(scores: Scores) -> Loss:
    """Return the function of one record's loss, ``-log softmax(scores)[label]``."""

    def loss(params: Params, features: Array, label: Array) -> Array:
        return -jax.nn.log_softmax(scores(params, features))[label]

    return loss


def _check_sizes(name: str, sizes: Sequence[int], count: int) -> None:
    """Fail unless these are `count` integers of at least 1."""
    if not isinstance(sizes, Sequence) or len(sizes) != count:
        fail(name, f"{count} sizes", sizes)
    for size in sizes:
        integer(name, size, at_least=1)


def _half(side: int) -> int:
    """Return half of a side of an image in pixels, rounded up: the side after max-pooling."""
    return -(-side // 2)


def _strided(side: int) -> int:
    """Return the side of an image in pixels after a convolution of stride 2 without padding."""
    return (side - KERNEL_SIDE) // 2 + 1


def _patches(image: Array, *, stride: int = 1) -> Array:
    """Return the 5 x 5 squares of an image, shape (rows, columns, 25 * channels).

    A convolution is their product with the kernel. For many nodes, each with its own kernel,
    compilers turn this into one batched matrix product, but `lax.conv` into slow convolutions one
    by one.

    Parameters
    ----------
    image
        Shape (height, width, channels).
    stride
        Distance of neighbouring squares in pixels.
    """
    height, width = image.shape[:2]
    rows = height - KERNEL_SIDE + 1  # positions of a square along each side, at stride 1
    columns = width - KERNEL_SIDE + 1
    pixels = [
        image[i : i + rows : stride, j : j + columns : stride]  # pixel (i, j) of each square
        for i in range(KERNEL_SIDE)
        for j in range(KERNEL_SIDE)
    ]
    return jnp.concatenate(pixels, axis=2)


def _max_pooled(image: Array) -> Array:
    """Return the largest values of 2 x 2 pixels; an odd side is padded."""
    height, width, channels = image.shape
    margins = ((0, height % 2), (0, width % 2), (0, 0))
    padded = jnp.pad(image, margins, constant_values=-jnp.inf)
    squares = padded.reshape(_half(height), 2, _half(width), 2, channels)
    return squares.max(axis=(1, 3))


def _dense(key: Array, shape: tuple[int, ...]) -> Layer:
    """Return a layer: a normal kernel with entries of variance 1 / inputs, and a bias of 0."""
    inputs = prod(shape[:-1])
    kernel = jax.random.normal(key, shape) / jnp.sqrt(inputs)
    return {"kernel": kernel, "bias": jnp.zeros(shape[-1])}


def _start(kernel_shapes: dict[str, tuple[int, ...]]) -> Callable[[Array], Params]:
    """Return the function that draws layers with kernels of these shapes."""

    def start(key: Array) -> Params:
        layer_keys = jax.random.split(key, len(kernel_shapes))
        layers = map(_dense, layer_keys, kernel_shapes.values())
        return dict(zip(kernel_shapes, layers, strict=True))

    return start


def _linear(layer: Layer, x: Array) -> Array:
    """Return ``x @ kernel + bias``, shape (.., outputs).

    The axes of the kernel before the last are one axis here, so that x may be the patches of an
    image as well as a vector.
    """
    kernel = layer["kernel"]
    outputs = kernel.shape[-1]
    return x @ kernel.reshape(-1, outputs) + layer["bias"]


def _lstm(layer: Layer, inputs: Array, hidden: int) -> Array:
    """Return the outputs of one LSTM layer, shape (length, hidden).

    Forget gates have a bias of 1 beside the learned one: cells start by keeping most of what they
    hold (Jozefowicz, Zaremba and Sutskever 2015).
    """

    def advance(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        output, cell = state
        gates = _linear(layer, jnp.concatenate([x, output]))
        input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4)
        retained = jax.nn.sigmoid(forget_gate + 1) * cell
        cell = retained + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
        output = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
        return (output, cell), output

    zeros = jnp.zeros(hidden)
    _, outputs = jax.lax.scan(advance, (zeros, zeros), inputs)
    return outputs

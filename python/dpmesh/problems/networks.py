"""Neural networks of the papers as pure JAX functions, for `JaxProblem`.

The module needs the extra ``jax``.

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
    """Functions of a model, in the order of `JaxProblem`'s arguments.

    Attributes
    ----------
    start
        Function ``start(key)`` that draws initial parameters from a JAX key.
    loss
        Function ``loss(params, features, label)`` that returns the loss of one record.
    scores
        Function ``scores(params, features)`` that returns the scores of one record, shape
        (classes,).
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
    """Return a network of two 5 x 5 convolutions with max-pooling, and two dense layers.

    It is the image classifier of Liang et al. (DP-Fed-LS). A convolution keeps the size of the
    image; max-pooling then halves both sides, rounded up. A linear layer returns the scores.

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
    """Return a small network of two 5 x 5 convolutions of stride 2 and a linear layer.

    Convolutions are computed as matrix products with patches of the image. Per-record gradients,
    which clipping needs, are then several times faster on a CPU.

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
    """Return a character-level language model: an embedding, LSTM layers and a linear layer.

    It predicts the next character of a text. Section 6.3 of Liang et al. trains it on the plays of
    Shakespeare.

    Parameters
    ----------
    characters
        Number of distinct characters. The features of a record are the codes of consecutive
        characters, from 0; its label is the code of the next character.
    embedding
        Length of a character's embedding vector.
    hidden
        Number of outputs of each LSTM layer.
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
    """Return a model in which only some layers are trained; the others keep public parameters.

    Parameters
    ----------
    model
        A model whose parameters are layers by name, such as those of this module.
    public
        Pretrained parameters of the model. They must not depend on private data, since they are
        published without noise.
    layers
        Names of the layers that are trained, which start from `public`.

    Raises
    ------
    ValueError
        If `layers` is empty, or the model has no layer of a name.
    """
    learned_layers = _checked_layers(public, layers)

    def start(key: Array) -> Params:  # noqa: ARG001
        return {name: public[name] for name in learned_layers}

    return _adapted(model, start, lambda learned: {**public, **learned})


def low_rank(model: Model, public: Params, layers: Sequence[str], *, rank: int) -> Model:
    """Return a model in which only low-rank updates of some layers' kernels are trained (LoRA).

    A kernel of shape (.., outputs) becomes ``kernel + reshape(a @ b)``. Here a has shape (inputs,
    rank), b has shape (rank, outputs), and inputs is the product of the kernel's other axes. b is
    initially 0, so that training starts from the public model. Biases keep their public values.
    Source: Hu et al., LoRA: low-rank adaptation of large language models, 2022.

    Parameters
    ----------
    model, public, layers
        As for `last_layers`; a layer is a mapping with a ``kernel``.
    rank
        Rank of each update, at least 1.

    Raises
    ------
    ValueError
        If `layers` is empty, the model has no layer of a name, or `rank` is not an integer of at
        least 1.
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
    """Return a model whose parameters are computed from fewer trained parameters.

    Parameters
    ----------
    model
        The model with all parameters.
    start
        Function that draws the trained parameters from a JAX key.
    adapt
        Function that returns all parameters of `model` for the trained parameters.
    """

    def loss(learned: Params, features: Array, label: Array) -> Array:
        return model.loss(adapt(learned), features, label)

    def scores(learned: Params, features: Array) -> Array:
        return model.scores(adapt(learned), features)

    return Model(start, loss, scores)


def _checked_layers(public: Params, layers: Sequence[str]) -> list[str]:
    """Return the names of layers as a list, after a check that the model has them."""
    names = [layers] if isinstance(layers, str) else list(layers)
    if not names or not set(names) <= set(public):
        fail("layers", f"some of {', '.join(public)}", names)
    return names


def cross_entropy(scores: Scores) -> Loss:
    """Return a function of the loss of one record, ``-log softmax(scores)[label]``."""

    def loss(params: Params, features: Array, label: Array) -> Array:
        return -jax.nn.log_softmax(scores(params, features))[label]

    return loss


def _check_sizes(name: str, sizes: Sequence[int], count: int) -> None:
    """Raise a ValueError unless these are `count` integers of at least 1."""
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
    """Return the 5 x 5 patches of an image, shape (rows, columns, 25 * channels).

    A convolution is the product of the patches with the kernel. For many nodes with different
    kernels, JAX compiles it to one batched matrix product. It would compile `lax.conv` to separate,
    slow convolutions.

    Parameters
    ----------
    image
        Shape (height, width, channels).
    stride
        Distance of neighbouring patches in pixels.
    """
    height, width = image.shape[:2]
    rows = height - KERNEL_SIDE + 1  # positions of a patch along each side, at stride 1
    columns = width - KERNEL_SIDE + 1
    pixels: list[Array] = []
    for i in range(KERNEL_SIDE):
        for j in range(KERNEL_SIDE):
            pixel_of_patches = image[i : i + rows : stride, j : j + columns : stride]
            pixels.append(pixel_of_patches)
    return jnp.concatenate(pixels, axis=2)


def _max_pooled(image: Array) -> Array:
    """Return the largest values of 2 x 2 pixels; an odd side is padded."""
    height, width, channels = image.shape
    margins = ((0, height % 2), (0, width % 2), (0, 0))
    padded = jnp.pad(image, margins, constant_values=-jnp.inf)
    squares = padded.reshape(_half(height), 2, _half(width), 2, channels)
    return squares.max(axis=(1, 3))


def _dense(key: Array, shape: tuple[int, ...]) -> Layer:
    """Return a layer with Gaussian weights of variance 1 / inputs, and a bias of 0."""
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

    The axes of the kernel before the last one are flattened, so that x may be a vector or the
    patches of an image.
    """
    kernel = layer["kernel"]
    outputs = kernel.shape[-1]
    return x @ kernel.reshape(-1, outputs) + layer["bias"]


def _lstm(layer: Layer, inputs: Array, hidden: int) -> Array:
    """Return the outputs of one LSTM layer, shape (length, hidden).

    Forget gates have a constant bias of 1 in addition to the trained bias, so that cells initially
    retain most of their content (Jozefowicz, Zaremba and Sutskever 2015).
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

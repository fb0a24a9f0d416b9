"""Formulas from the papers in plain NumPy, independent of torch and mtformer.

B batch, T query length, S key length, D model width, H heads, G key/value heads, K width of a head, F feed-forward
width. Matrices are (out, in): y = W x + b.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Weights = dict[str, Array]
EPS = 1e-5


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q_TK: Array, k_SK: Array, v_SK: Array, mask_TS: Mask | None = None) -> tuple[Array, Array]:
    """Compute equation 1 of Vaswani et al. 2017 for one head and sentence: output (T, K) and weights (T, S)."""
    scores_TS = q_TK @ k_SK.T / math.sqrt(q_TK.shape[-1])
    if mask_TS is not None:
        scores_TS = np.where(mask_TS, scores_TS, -np.inf)
    weights_TS = softmax(scores_TS)
    return weights_TS @ v_SK, weights_TS


def rotate(x_TK: Array) -> Array:
    """Rotate the complex numbers x_i + j x_(i + K/2) by pos / 10000^(2i/K) (Su et al. 2021, equation 34)."""
    T, K = x_TK.shape
    out = np.empty_like(x_TK)
    for pos in range(T):
        for i in range(K // 2):
            turned = complex(x_TK[pos, i], x_TK[pos, i + K // 2]) * np.exp(1j * pos / 10000 ** (2 * i / K))
            out[pos, i], out[pos, i + K // 2] = turned.real, turned.imag
    return out


def multi_head_attention(
    x_BTD: Array, source_BSD: Array, w: Weights, H: int, G: int, mask_BTS: Mask | None = None, rotary: bool = False
) -> Array:
    """Compute section 3.2.2 with loops over sentences and heads; query head h uses key/value head h // (H/G).

    Weights: q, k, v, out, each with its `_bias`.
    """
    D = x_BTD.shape[-1]
    K = D // H
    out = np.zeros_like(x_BTD)
    for b in range(len(x_BTD)):
        heads = []
        for h in range(H):
            g = h // (H // G)
            rows, kv_rows = slice(h * K, (h + 1) * K), slice(g * K, (g + 1) * K)
            q_TK = x_BTD[b] @ w["q"][rows].T + w["q_bias"][rows]
            k_SK = source_BSD[b] @ w["k"][kv_rows].T + w["k_bias"][kv_rows]
            v_SK = source_BSD[b] @ w["v"][kv_rows].T + w["v_bias"][kv_rows]
            if rotary:
                q_TK, k_SK = rotate(q_TK), rotate(k_SK)
            heads.append(attention(q_TK, k_SK, v_SK, None if mask_BTS is None else mask_BTS[b])[0])
        out[b] = np.concatenate(heads, axis=-1) @ w["out"].T + w["out_bias"]
    return out


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPS) * weight + bias


def rms_norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * weight


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


def gelu(x: Array) -> Array:
    """Return x Phi(x), with the standard normal Phi (Hendrycks and Gimpel 2016)."""
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def swish(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def feed_forward(x: Array, w: Weights, activation: Callable[[Array], Array] = relu) -> Array:
    """Compute equation 2: W2 f(W1 x + b1) + b2."""
    return activation(x @ w["w1"].T + w["b1"]) @ w["w2"].T + w["b2"]


def gated_feed_forward(x: Array, w: Weights, activation: Callable[[Array], Array]) -> Array:
    """Compute equation 6 of Shazeer 2020 with biases: W2 (f(W x + b) * (V x + c)) + b2."""
    gate = activation(x @ w["w"].T + w["b"])
    return (gate * (x @ w["v"].T + w["c"])) @ w["w2"].T + w["b2"]


def post_norm_encoder_layer(x_BSD: Array, attention: Weights, rest: Weights, H: int, mask_BTS: Mask | None) -> Array:
    """Compute LayerNorm(x + Sublayer(x)) twice; `rest` has w1, b1, w2, b2, norm1, norm1_bias, norm2, norm2_bias."""
    x_BSD = x_BSD + multi_head_attention(x_BSD, x_BSD, attention, H, H, mask_BTS)
    x_BSD = layer_norm(x_BSD, rest["norm1"], rest["norm1_bias"])
    x_BSD = x_BSD + feed_forward(x_BSD, rest)
    return layer_norm(x_BSD, rest["norm2"], rest["norm2_bias"])


def sinusoid(num_positions: int, D: int) -> Array:
    """Compute PE of section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D))."""
    table = np.empty((num_positions, D))
    for pos in range(num_positions):
        for i in range(D // 2):
            table[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / D))
            table[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / D))
    return table

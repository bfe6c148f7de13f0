"""Runs torch for a benchmark, in the Python of TORCH_PYTHON.

A script, not a module of tokumx: it imports neither tokumx nor jax, so that
torch's Python may be another one. It reads one JSON request a line from
standard input and answers each with one JSON line. Arrays travel as .npy files
(bfloat16 as uint16).

  {"do": "load", "operation", "options", "arrays": {name: path}, "cotangent": path,
   "dtypes": {name: dtype}, "differentiable": [name]}
  {"do": "results", "work", "folder"}  -> {"files": {name: path}, "dtype": ...}
  {"do": "time", "work", "repeats"}    -> {"seconds": float}
"""

import json
import os
import sys
import time

import numpy as np
import torch  # pyright: ignore[reportMissingImports] - of another Python

# libgomp's threads spin for a while after they are needed; the next contestant
# must not share its cores with them.
_SETTLE_S = 0.01


def attention(arrays, options):
    """scaled_dot_product_attention of [B, length, heads, dim] arrays."""
    query, key, value = (arrays[n].transpose(1, 2) for n in ("query", "key", "value"))
    is_causal, window = options["is_causal"], options["window"]
    mask = None
    if window is not None:
        mask = _band(query.shape[2], key.shape[2], is_causal, window)
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=is_causal and mask is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2)


def _band(queries, keys, is_causal, window):
    """[queries, keys] bool: the keys that a query sees."""
    left, right = window
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    return visible & (distance <= 0) if is_causal else visible


def moe(arrays, options):
    """A loop over the experts, each on the tokens that chose it."""
    x = arrays["x"]
    logits = x.float() @ arrays["router_weight"].float()
    weights, experts = torch.topk(logits.softmax(-1), options["k"])
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for e in range(arrays["w_gate"].shape[0]):
        token, choice = torch.where(experts == e)
        rows = x[token]
        hidden = torch.nn.functional.silu(rows @ arrays["w_gate"][e])
        rows = (hidden * (rows @ arrays["w_up"][e])) @ arrays["w_down"][e]
        rows = rows * weights[token, choice, None].to(rows.dtype)
        out = out.index_add(0, token, rows)
    return out


def ragged_dot(arrays, options):
    """A loop over the groups, each on its own rows."""
    del options
    sizes = arrays["group_sizes"].tolist()
    rows = torch.split(arrays["lhs"], sizes)
    return torch.cat([x @ w for x, w in zip(rows, arrays["rhs"], strict=True)])


def gated_linear_unit(arrays, options):
    """The projections apart or as one product, as the weights come."""
    x = arrays["x"]
    if "weights" in arrays:
        gate, up = (x @ arrays["weights"].flatten(1)).chunk(2, -1)
    else:
        gate, up = x @ arrays["gate_weight"], x @ arrays["up_weight"]
    if "gate_bias" in arrays:
        gate, up = gate + arrays["gate_bias"], up + arrays["up_bias"]
    hidden = _gated(gate, up, options["activation"])
    if "down_weight" in arrays:
        hidden = hidden @ arrays["down_weight"]
    return hidden + arrays["down_bias"] if "down_bias" in arrays else hidden


def cross_entropy(arrays, options):
    """All logits, then the loss of those in f32."""
    weight = arrays["weight"]
    logits = arrays["x"] @ (weight.T if options["weight_layout"] == "vd" else weight)
    logits, cap = logits.float(), options["logits_soft_cap"]
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    return torch.nn.functional.cross_entropy(logits, arrays["labels"].long())


def norm(arrays, options):
    """rms_norm or layer_norm, after the residual sum if there is one."""
    x = arrays["x"]
    if "residual" in arrays:
        x = x + arrays["residual"]
    bias = (arrays["bias"],) if "bias" in arrays else ()
    function = getattr(torch.nn.functional, options["op"])
    out = function(x, x.shape[-1:], arrays["scale"], *bias, eps=options["eps"])
    return (out, x) if "residual" in arrays else out


def rotary_embedding(arrays, options):
    """As Llama's model code has it: halves, or pairs that lie side by side."""
    heads = arrays["x"]
    cos, sin = (arrays[n][:, :, None] for n in ("cos", "sin"))
    turning, rest = heads.split(
        [2 * cos.shape[-1], heads.shape[-1] - 2 * cos.shape[-1]], -1
    )
    if options["interleaved"]:
        first, second = turning[..., ::2], turning[..., 1::2]
        both = (first * cos - second * sin, second * cos + first * sin)
        turned = torch.stack(both, -1).flatten(-2)
    else:
        first, second = turning.chunk(2, -1)
        rotated = torch.cat([-second, first], -1)
        turned = turning * torch.cat([cos, cos], -1) + rotated * torch.cat(
            [sin, sin], -1
        )
    turned = turned.to(heads.dtype)
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def matmul(arrays, options):
    """With the weights as they were before they were quantized to bits."""
    del options
    return arrays["x"] @ arrays["weights"]


def _gated(gate, up, activation):
    if activation == "swiglu_oai":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    return getattr(torch.nn.functional, activation)(gate) * up


def compiled(function):
    """The same through torch.compile, once for each set of shapes."""

    def run(arrays, options):
        specs = ((n, x.shape, x.dtype, x.requires_grad) for n, x in arrays.items())
        key = (function, *specs, json.dumps(options))
        if key not in _COMPILED:
            torch.compiler.reset()
            _COMPILED.clear()
            _COMPILED[key] = torch.compile(function, dynamic=False)
        return _COMPILED[key](arrays, options)

    return run


_COMPILED = {}

OPERATIONS = {
    "attention": attention,
    "cross_entropy": cross_entropy,
    "cross_entropy_compiled": compiled(cross_entropy),
    "gated_linear_unit": gated_linear_unit,
    "gated_linear_unit_compiled": compiled(gated_linear_unit),
    "matmul": matmul,
    "moe": moe,
    "norm": norm,
    "norm_compiled": compiled(norm),
    "ragged_dot": ragged_dot,
    "rotary_embedding": rotary_embedding,
    "rotary_embedding_compiled": compiled(rotary_embedding),
}


class Worker:
    """Holds the operands of one case."""

    def load(self, request):
        dtypes = request["dtypes"]
        self.arrays = {
            n: _read(path, dtypes[n]) for n, path in request["arrays"].items()
        }
        self.cotangent = _read(request["cotangent"], request["dtypes"]["out"])
        self.differentiable = request["differentiable"]
        self.operation = OPERATIONS[request["operation"]]
        self.options = request["options"]
        return {}

    def results(self, request):
        found = self._step(request["work"])()
        grads = self.differentiable if request["work"] == "forward_backward" else []
        names = [f"out{i or ''}" for i in range(len(found) - len(grads))]
        names += [f"d_{n}" for n in grads]
        arrays = dict(zip(names, found, strict=True))
        folder = request["folder"]
        files = {n: os.path.join(folder, f"result_{n}.npy") for n in arrays}
        for name, x in arrays.items():
            _write(files[name], x)
        dtype = str(arrays["out"].dtype).removeprefix("torch.")
        return {"files": files, "dtype": dtype}

    def time(self, request):
        step = self._step(request["work"])
        begin = time.perf_counter()
        for _ in range(request["repeats"]):
            step()
        seconds = time.perf_counter() - begin
        time.sleep(_SETTLE_S)
        return {"seconds": seconds}

    def _step(self, work):
        return self._forward if work == "forward" else self._forward_backward

    def _forward(self):
        with torch.inference_mode():
            return _several(self.operation(self.arrays, self.options))

    def _forward_backward(self):
        leaves = [self.arrays[n].detach().requires_grad_() for n in self.differentiable]
        given = dict(zip(self.differentiable, leaves, strict=True))
        out = _several(self.operation({**self.arrays, **given}, self.options))
        cotangents = [self.cotangent] * len(out)
        gradients = torch.autograd.grad(out, leaves, cotangents)
        return (*(x.detach() for x in out), *gradients)


def _several(out):
    return out if isinstance(out, tuple) else (out,)


def _read(path, dtype):
    x = torch.from_numpy(np.load(path))
    return x.view(torch.bfloat16) if dtype == "bfloat16" else x


def _write(path, x):
    x = x.contiguous()
    x = x.view(torch.uint16) if x.dtype == torch.bfloat16 else x
    np.save(path, x.numpy())


def main():
    threads = int(sys.argv[1])
    torch.set_num_threads(threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else torch prints
    worker = Worker()
    print(json.dumps({"torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request["do"])(request)
        except Exception as error:  # reported in the benchmark's table
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

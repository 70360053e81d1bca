"""Writes onnxruntime-contrib.tar: contributed operators of quantised models and decoders, and onnxruntime's outputs.

The layout is that of ONNX's node suite. Recorded with onnxruntime 1.32, its optimisations off, on one thread (where a
layer quantises states, several threads do it for parts of a batch). Compress with `zstd -19`.
"""
import io, sys, tarfile
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper as nh

ort.set_default_logger_severity(4)
cases = []
rng = np.random.default_rng(11)
def f(*shape): return (rng.standard_normal(shape) * 32).round().astype(np.float32) / 32  # small when compressed
def i32(*v): return np.array(v, np.int32)
def u8(*s): return rng.integers(0, 256, s).astype(np.uint8)
def i8(*s): return rng.integers(-127, 128, s).astype(np.int8)
def scales(*s): return (rng.uniform(0.005, 0.03, s)).astype(np.float32)


def info(name, x):
    return h.make_tensor_value_info(name, x.data_type if isinstance(x, onnx.TensorProto) else h.np_dtype_to_tensor_dtype(x.dtype), x.dims if isinstance(x, onnx.TensorProto) else x.shape)


def graph(name, nodes, feeds, constants, outputs, rtol=1e-4, atol=1e-5):
    """A model of these nodes, run once."""
    inits = []
    for key, x in constants.items():
        if isinstance(x, onnx.TensorProto):
            x = onnx.TensorProto.FromString(x.SerializeToString())
            x.name = key
        else:
            x = nh.from_array(np.asarray(x), key)
        inits.append(x)
    opsets = [h.make_opsetid("", 21), h.make_opsetid("com.microsoft", 1)]
    g = h.make_graph(nodes, name, [info(k, v) for k, v in feeds.items()], [h.make_empty_tensor_value_info(o) for o in outputs], inits)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    model = h.make_model(g, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = session.run(None, feeds)
    assert all(np.isfinite(r.astype(np.float64)).all() for r in results), name
    del g.output[:]
    g.output.extend(info(o, r) for o, r in zip(outputs, results))
    model = h.make_model(g, opset_imports=opsets, ir_version=10)
    files = {f"node/{name}/model.onnx": model.SerializeToString()}
    for i, (key, x) in enumerate(feeds.items()):
        files[f"node/{name}/test_data_set_0/input_{i}.pb"] = nh.from_array(x, key).SerializeToString()
    for i, r in enumerate(results):
        files[f"node/{name}/test_data_set_0/output_{i}.pb"] = nh.from_array(np.asarray(r, order="C")).SerializeToString()
    assert sum(map(len, files.values())) < 50_000, name
    ops = ",".join(sorted({n.op_type for n in nodes}))
    cases.append((name, ops, 21, rtol, atol, files))


def case(name, op, inputs, outputs=1, constants=(), rtol=1e-4, atol=1e-5, wanted=None, **attrs):
    """One operator; inputs: arrays, tensors or None; those whose index is in `constants` become initializers."""
    inputs = [x if x is None or isinstance(x, onnx.TensorProto) else np.asarray(x) for x in inputs]
    while inputs[-1] is None:
        inputs.pop()
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    outs = [f"y{i}" if wanted is None or i in wanted else "" for i in range(outputs)]
    node = h.make_node(op, names, outs, domain="com.microsoft", name="node", **attrs)
    given = [(i, n, x) for i, (n, x) in enumerate(zip(names, inputs)) if x is not None]
    graph(f"contrib_{name}", [node], {n: x for i, n, x in given if i not in constants}, {n: x for i, n, x in given if i in constants},
          [o for o in outs if o], rtol, atol)


# --- GroupQueryAttention
def gqa(name, new, held, lengths, total, heads=None, groups=None, size=None, packed=False, past=True, rotary=0, turned=None, positions=None, bias=None, sink=None,
        outputs=3, dtype=np.float32, rtol=1e-4, atol=1e-5, as_input=False, **attrs):
    """`new` tokens of each sample behind a cache with room for `held`, which is zero behind what a sample has in it."""
    batch = len(lengths)
    size, heads, groups = size or (16 if rotary else 8), heads or (2 if rotary else 4), groups or (1 if rotary else 2)
    e = lambda *s: f(*s).astype(dtype)
    hidden = (heads + 2 * groups if packed else heads) * size
    q, k, v = e(batch, new, hidden), None if packed else e(batch, new, groups * size), None if packed else e(batch, new, groups * size)
    keys = values = None
    if past:
        keys, values = e(batch, groups, held, size), e(batch, groups, held, size)
        for b, length in enumerate(lengths):
            before = 0 if total == new else length - new
            keys[b, :, before:] = 0
            values[b, :, before:] = 0
    cos = sin = None
    if rotary:
        angle = np.outer(np.arange(16), 1 / 10 ** np.arange((turned or size) // 2)).astype(np.float32)
        cos, sin = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
        attrs["do_rotary"] = 1
    cast = lambda x: None if x is None else x.astype(dtype)
    inputs = [q, k, v, keys, values, i32(*(n - 1 for n in lengths)), i32(total), cos, sin, positions, cast(bias), cast(sink)]
    case(f"gqa_{name}", "GroupQueryAttention", inputs, outputs, constants=(7, 8) if as_input else (6, 7, 8), rtol=rtol, atol=atol,
         num_heads=heads, kv_num_heads=groups, **attrs)

gqa("prompt", 5, 0, (5, 5), 5, past=False)
gqa("prompt_output_only", 5, 0, (5, 5), 5, past=False, outputs=1)
gqa("prompt_heads_of_16", 5, 0, (5,), 5, past=False, size=16, heads=2, groups=2)
gqa("prompt_into_room", 5, 9, (5, 5), 5)
gqa("token", 1, 6, (7, 7), 7)
gqa("token_total_as_input", 1, 6, (7, 7), 7, as_input=True)
gqa("token_ragged", 1, 6, (7, 4), 7)
gqa("token_into_room", 1, 9, (7, 4), 7, groups=1)
gqa("chunk", 3, 6, (9,), 9)
gqa("chunk_into_room", 3, 12, (9,), 9)
gqa("window", 5, 0, (5, 5), 5, past=False, local_window_size=2)
gqa("window_of_one", 3, 0, (3,), 3, past=False, local_window_size=1)
gqa("window_token", 1, 6, (7, 4), 7, local_window_size=3)
gqa("window_chunk", 3, 6, (9,), 9, local_window_size=4)
gqa("softcap", 5, 0, (5, 5), 5, past=False, softcap=0.7)
gqa("softcap_token", 1, 6, (7, 4), 7, softcap=0.7)
gqa("scale", 5, 0, (5, 5), 5, past=False, scale=0.3)
gqa("bias", 5, 0, (5, 5), 5, past=False, bias=f(1, 4, 5, 5))
gqa("bias_token_into_room", 1, 9, (7, 4), 7, bias=f(2, 1, 1, 7))
gqa("bias_softcap", 5, 0, (5, 5), 5, past=False, bias=f(2, 4, 5, 5), softcap=0.7)
gqa("smooth", 5, 0, (5, 5), 5, past=False, smooth_softmax=1)
gqa("smooth_token", 1, 6, (7, 4), 7, smooth_softmax=1, softcap=0.7, bias=f(2, 4, 1, 7))
gqa("sink", 5, 0, (5, 5), 5, past=False, sink=f(4))
gqa("sink_window_token", 1, 6, (7, 4), 7, sink=f(4), local_window_size=2)
gqa("bidirectional", 5, 0, (5, 3), 5, past=False, causal=0)
gqa("bidirectional_token", 1, 6, (7, 4), 7, causal=0)
for interleaved in (0, 1):
    gqa(f"rotary_{interleaved}", 5, 0, (5, 5), 5, past=False, rotary=1, rotary_interleaved=interleaved)
    gqa(f"rotary_{interleaved}_token", 1, 6, (7, 4), 7, rotary=1, rotary_interleaved=interleaved)
    gqa(f"rotary_{interleaved}_chunk", 3, 6, (9,), 9, rotary=1, rotary_interleaved=interleaved)
gqa("rotary_part", 1, 6, (7, 4), 7, rotary=1, turned=16, size=32)
gqa("rotary_positions", 5, 0, (5, 5), 5, past=False, rotary=1, positions=np.arange(3, 8)[None].repeat(2, 0))
gqa("rotary_positions_token", 1, 6, (7, 4), 7, rotary=1, positions=np.array([[9], [2]]))
gqa("packed", 5, 0, (5, 5), 5, past=False, packed=True)
gqa("packed_rotary_token", 1, 6, (7, 4), 7, packed=True, rotary=1)
gqa("packed_rotary_chunk", 3, 6, (9,), 9, packed=True, rotary=1, heads=4, groups=4)
gqa("f16", 5, 0, (5, 5), 5, past=False, dtype=np.float16, rtol=4e-3, atol=4e-3)
gqa("f16_rotary_token", 1, 6, (7, 4), 7, rotary=1, dtype=np.float16, rtol=4e-3, atol=4e-3)

# A padded prompt, and a step of a decoder whose lengths come from a mask, as exporters write them: what padding gives
# means nothing and is left out.
n = lambda op, inputs, outputs, domain="", **attrs: h.make_node(op, inputs.split(), outputs.split(), domain=domain, **attrs)
lengths = [n("ReduceSum", "mask one", "sums", keepdims=0), n("Sub", "sums one", "ends"), n("Cast", "ends", "seqlens", to=T.INT32), n("Shape", "mask", "shape"),
           n("Gather", "shape one", "total64", axis=0), n("Cast", "total64", "total", to=T.INT32)]
numbers = dict(one=np.array([1], np.int64), zero=np.float32(0))
mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int64)
attention = h.make_node("GroupQueryAttention", ["q", "k", "v", "", "", "seqlens", "total"], ["y", "keys", "values"], domain="com.microsoft", num_heads=4, kv_num_heads=2)
valid = [n("Cast", "mask", "kept", to=T.BOOL), n("Unsqueeze", "kept two", "column"), n("Where", "column y zero", "z")]
graph("contrib_gqa_padded_prompt", lengths + [attention] + valid, dict(q=f(2, 5, 32), k=f(2, 5, 16), v=f(2, 5, 16), mask=mask), dict(numbers, two=np.array([2], np.int64)), ["z", "keys", "values"])
attention = h.make_node("GroupQueryAttention", ["q", "k", "v", "past_keys", "past_values", "seqlens", "total"], ["y", "keys", "values"], domain="com.microsoft", num_heads=4, kv_num_heads=2)
graph("contrib_gqa_decoder_step", lengths + [attention], dict(q=f(1, 1, 32), k=f(1, 1, 16), v=f(1, 1, 16), past_keys=f(1, 2, 6, 8), past_values=f(1, 2, 6, 8), mask=np.ones((1, 7), np.int64)), numbers, ["y", "keys", "values"])

# --- MatMulNBits
def n_bits(name, rows=(3,), k=40, n=5, block=16, bits=4, zeros=None, bias=False, groups=None, dtype=np.float32, rtol=1e-4, atol=1e-5, given=(), **attrs):
    blocks = -(-k // block)
    e = lambda *s: f(*s).astype(dtype)
    zero_points = {None: None, "packed": u8(n, -(-blocks * bits // 8)), "flat": u8(n * -(-blocks * bits // 8)), "float": rng.uniform(0, 2 ** bits, (n, blocks)).astype(dtype)}[zeros]
    inputs = [e(*rows, k), u8(n, blocks, block * bits // 8), scales(n, blocks).astype(dtype), zero_points, groups, e(n) if bias else None]
    case(f"n_bits_{name}", "MatMulNBits", inputs, constants=tuple(i for i in (1, 2, 3, 4, 5) if i not in given), K=k, N=n, bits=bits, block_size=block, rtol=rtol, atol=atol, **attrs)

for bits in (2, 4, 8):
    n_bits(f"{bits}", bits=bits)
    n_bits(f"{bits}_zeros", bits=bits, zeros="packed")
    n_bits(f"{bits}_ragged_zeros", bits=bits, zeros="packed", k=72, block=32)
    if bits < 8:  # onnxruntime's CPU has none for bytes
        n_bits(f"{bits}_float_zeros", bits=bits, zeros="float")
n_bits("bias_batch", rows=(2, 3), bias=True, zeros="packed", k=64, block=32)
n_bits("flat_zeros", zeros="flat")
# With zero points, which onnxruntime's CPU leaves out then, these are tested without it.
n_bits("groups", groups=rng.permutation(np.arange(40, dtype=np.int32) // 16))
n_bits("accuracy_1", accuracy_level=1, zeros="packed")
n_bits("f16", dtype=np.float16, zeros="packed", bias=True, rtol=4e-3, atol=4e-3)
n_bits("one_row", rows=(1,), k=128, block=128, n=16)
n_bits("weights_as_inputs", zeros="packed", given=(1, 2, 3))

# --- GatherBlockQuantized
def four(kind, *shape):
    low, high = (0, 16) if kind == T.UINT4 else (-8, 8)
    return h.make_tensor("four", kind, shape, rng.integers(low, high, shape).flatten().tolist())

G = dict(op="GatherBlockQuantized")
ids = np.array([[1, 5, 0], [-1, 3, 6]], np.int64)
for name, kind in (("u4", T.UINT4), ("i4", T.INT4)):
    case(f"gather_{name}", inputs=[four(kind, 7, 40), ids, scales(7, 3), four(kind, 7, 3)], constants=(0, 2, 3), block_size=16, **G)
    case(f"gather_{name}_no_zeros", inputs=[four(kind, 7, 40), ids.astype(np.int32), scales(7, 3)], constants=(0, 2), block_size=16, **G)
    case(f"gather_{name}_axes", inputs=[four(kind, 20, 3, 7), ids, scales(2, 3, 7), four(kind, 2, 3, 7)], constants=(0, 2, 3), block_size=16, gather_axis=-1, quantize_axis=0, **G)
    case(f"gather_{name}_within_blocks", inputs=[four(kind, 3, 40), np.array([0, 17, -1, 39, 16]), scales(3, 3), four(kind, 3, 3)], constants=(0, 2, 3), block_size=16, gather_axis=1, quantize_axis=1, **G)
for bits in (2, 4, 8):
    zeros = u8(7, -(-3 * bits // 8))
    case(f"gather_bytes_{bits}", inputs=[u8(7, 48 * bits // 8), ids, scales(7, 3), zeros], constants=(0, 2, 3), block_size=16, bits=bits, **G)
    case(f"gather_bytes_{bits}_no_zeros", inputs=[u8(7, 48 * bits // 8), ids, scales(7, 3)], constants=(0, 2), block_size=16, bits=bits, **G)
case("gather_bytes_default", inputs=[u8(7, 64), np.array(2), scales(7, 1)], constants=(0, 2), **G)
case("gather_bytes_three_dims", inputs=[u8(7, 2, 16), ids[0], scales(7, 2, 2), u8(7, 2, 1)], constants=(0, 2, 3), block_size=16, quantize_axis=2, **G)
case("gather_out_of_range", inputs=[u8(7, 24), np.array([0, 7, -8, 6]), scales(7, 3)], constants=(0, 2), block_size=16, **G)
case("gather_f16", inputs=[four(T.UINT4, 7, 40), ids, scales(7, 3).astype(np.float16), four(T.UINT4, 7, 3)], constants=(0, 2, 3), block_size=16, rtol=1e-3, **G)
for name, kind in (("f8e4m3fn", T.FLOAT8E4M3FN), ("f8e5m2", T.FLOAT8E5M2)):
    table = lambda: h.make_tensor("f8", kind, (7, 40), f(280).tolist())
    case(f"gather_{name}", inputs=[table(), ids, scales(7, 3)], constants=(0, 2), block_size=16, **G)
    case(f"gather_{name}_one_block", inputs=[table(), ids, scales(7, 1)], constants=(0, 2), block_size=0, **G)
    case(f"gather_{name}_one_scale", inputs=[table(), ids, scales(1, 1)], constants=(0, 2), block_size=0, **G)

# --- QGemm
sc = np.float32
def q_gemm(name, a=(3, 4), b=(4, 5), signed=(False, True), columns=False, bias=None, out=None, exact=True, **attrs):
    make = [i8 if s else u8 for s in signed]
    count = b[0] if attrs.get("transB") else b[1]
    zero = lambda s: np.int8(3) if s else np.uint8(120)
    inputs = [make[0](*a), sc(0.02), zero(signed[0]), make[1](*b), scales(count) if columns else sc(0.015), make[1](count) if columns else zero(signed[1]),
              None if bias is None else rng.integers(-500, 500, bias).astype(np.int32)] + ([None, None] if out is None else [sc(0.1), out])
    tolerance = dict(rtol=0, atol=0) if out is not None else {}
    case(f"q_gemm_{name}", "QGemm", inputs, constants=(1, 2, 3, 4, 5, 6, 7, 8), **tolerance, **attrs)

q_gemm("float")
q_gemm("u8_u8", signed=(False, False))
q_gemm("i8_i8", signed=(True, True))
q_gemm("bias", bias=(5,))
q_gemm("bias_rows", bias=(3, 1), alpha=0.5)
q_gemm("columns", columns=True, bias=(5,))
q_gemm("transposed", a=(4, 3), b=(5, 4), transA=1, transB=1, columns=True)
q_gemm("quantized", bias=(5,), out=np.uint8(128))
q_gemm("quantized_signed", columns=True, bias=(3, 5), out=np.int8(-4), signed=(True, True), alpha=1.5)

# --- QAttention
def q_attention(name, mask=None, past=None, columns=False, weight=i8, outputs=1, zeros=(True, True), heads=2, rtol=1e-4, **attrs):
    inputs = [u8(2, 5, 8), weight(8, 24), f(24), sc(0.01), scales(24) if columns else sc(0.02), mask, np.uint8(120) if zeros[0] else None,
              (weight(24) if columns else weight(1)[0]) if zeros[1] else None, past]
    case(f"q_attention_{name}", "QAttention", inputs, outputs, constants=(1, 2, 3, 4, 6, 7), num_heads=heads, rtol=rtol, **attrs)

q_attention("plain")
q_attention("u8", weight=u8)
q_attention("no_zeros", zeros=(False, False))
q_attention("columns", columns=True)
q_attention("unidirectional", unidirectional=1)
q_attention("mask_lengths", mask=i32(3, 5))
q_attention("mask_ends_starts", mask=i32(4, 5, 1, 0))
q_attention("mask_2d", mask=np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32))
q_attention("mask_unidirectional", mask=i32(3, 5), unidirectional=1)
q_attention("mask_filter", mask=i32(3, 5), mask_filter_value=-3.0)
q_attention("past", past=f(2, 2, 2, 3, 4), outputs=2)
q_attention("past_unidirectional", past=f(2, 2, 2, 3, 4), outputs=2, unidirectional=1)
q_attention("scale", scale=0.3)
q_attention("heads", heads=4)

# --- QEmbedLayerNormalization
def q_embed(name, segments=True, mask=True, kind=u8, **attrs):
    words = rng.integers(0, 7, (2, 4)).astype(np.int32)
    zero = lambda: kind(1)[0]
    inputs = [words, words % 2 if segments else None, kind(7, 6), kind(9, 6), kind(2, 6) if segments else None, kind(6), kind(6), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32) if mask else None,
              sc(0.02), sc(0.01), sc(0.03) if segments else None, sc(0.02), sc(0.01), zero(), zero(), zero() if segments else None, zero(), zero()]
    case(f"q_embed_{name}", "QEmbedLayerNormalization", inputs, 2, constants=(2, 3, 4, 5, 6, *range(8, 18)), **attrs)

q_embed("all")
q_embed("signed", kind=i8)
q_embed("no_segments", segments=False)
q_embed("no_mask", mask=False, epsilon=1e-3)

# --- QLinearGlobalAveragePool
for name, make, zeros, shape, last in (("u8", u8, (np.uint8(120), np.uint8(100)), (2, 3, 4, 5), 0), ("i8", i8, (np.int8(3), np.int8(-7)), (2, 3, 4, 5), 0), ("last", u8, (np.uint8(120), np.uint8(100)), (2, 4, 5, 3), 1),
                                       ("last_i8", i8, (np.int8(3), np.int8(-7)), (2, 4, 5, 3), 1), ("1d", u8, (np.uint8(0), np.uint8(0)), (2, 3, 7), 0)):
    case(f"q_global_average_{name}", "QLinearGlobalAveragePool", [make(*shape), sc(0.05), zeros[0], sc(0.01), zeros[1]], constants=(1, 2, 3, 4), rtol=0, atol=0, channels_last=last)

# --- DynamicQuantizeLSTM
def q_lstm(name, direction="forward", steps=4, batch=3, inputs=2, hidden=5, kind=i8, columns=False, bias=True, lengths=None, states=False, peepholes=False, outputs=3, wanted=None, **attrs):
    d = 2 if direction == "bidirectional" else 1
    scale = lambda: scales(d, 4 * hidden) if columns else scales(d)
    zero = lambda: np.zeros((d, 4 * hidden) if columns else (d,), np.int8) if kind is i8 else np.full((d, 4 * hidden) if columns else (d,), 120, np.uint8)
    e = lambda *s: f(*s)
    values = [f(steps, batch, inputs), kind(d, inputs, 4 * hidden), kind(d, hidden, 4 * hidden), e(d, 8 * hidden) if bias else None, None if lengths is None else i32(*lengths),
              e(d, batch, hidden) if states else None, e(d, batch, hidden) if states else None, e(d, 3 * hidden) if peepholes else None, scale(), zero(), scale(), zero()]
    case(f"q_lstm_{name}", "DynamicQuantizeLSTM", values, outputs, constants=(1, 2, 3, 7, 8, 9, 10, 11), wanted=wanted, hidden_size=hidden, direction=direction, **attrs)

for direction in ("forward", "reverse", "bidirectional"):
    q_lstm(direction, direction)
    q_lstm(f"{direction}_all", direction, lengths=(4, 2, 3), states=True, peepholes=True, columns=True)
q_lstm("plain", bias=False)
q_lstm("u8", kind=u8)
q_lstm("u8_columns", kind=u8, columns=True, states=True)
q_lstm("clip", clip=0.3)
q_lstm("input_forget", input_forget=1)
q_lstm("short", lengths=(2, 0, 3), states=True)
q_lstm("short_reverse", "reverse", lengths=(2, 0, 3), states=True)
q_lstm("activations", activations=["HardSigmoid", "LeakyRelu", "Elu"], activation_alpha=[0.3, 0.05, 0.7], activation_beta=[0.4])
q_lstm("y_only", outputs=1)
q_lstm("last_only", outputs=3, wanted=(1, 2))

with tarfile.open(sys.argv[1], "w") as tar:
    index = "".join(f"{n}\t{op}\t{opset}\t{rtol}\t{atol}\n" for n, op, opset, rtol, atol, _ in cases)
    files = {"node/index.tsv": index.encode()}
    for *_, more in cases:
        files.update(more)
    for name, data in files.items():
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
print(len(cases), "cases")

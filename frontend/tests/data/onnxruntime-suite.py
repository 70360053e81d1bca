"""Writes onnxruntime-suite.tar: models of one operator, inputs, and the outputs of onnxruntime 1.31 for them.

The layout is that of ONNX's node suite. For operators and forms that ONNX's suite does not have: those of
`com.microsoft`, old opsets, and recurrent layers with every option.
"""
import io, sys, tarfile
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper as nh

ort.set_default_logger_severity(3)
cases = []


def case(name, op, inputs, outputs=1, opset=17, domain="", constants=(), rtol=1e-4, atol=1e-5, wanted=None, **attrs):
    """inputs: arrays or None; those whose index is in `constants` become initializers."""
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    outs = [f"y{i}" for i in range(outputs)]
    if wanted is not None:
        outs = [o if i in wanted else "" for i, o in enumerate(outs)]
    node = h.make_node(op, names, outs, domain=domain, name="node", **attrs)
    info = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for i, (n, x) in enumerate(zip(names, inputs)) if x is not None and i not in constants]
    inits = [nh.from_array(x, n) for i, (n, x) in enumerate(zip(names, inputs)) if x is not None and i in constants]
    graph = h.make_graph([node], name, info, [h.make_empty_tensor_value_info(o) for o in outs if o], inits)
    opsets = [h.make_opsetid("", opset)] + ([h.make_opsetid(domain, 1)] if domain else [])
    model = h.make_model(graph, opset_imports=opsets, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {i.name: x for i, x in zip(info, [x for i, x in enumerate(inputs) if x is not None and i not in constants])}
    results = session.run(None, feeds)
    # The outputs are declared with the types and shapes they have.
    del graph.output[:]
    for o, r in zip([o for o in outs if o], results):
        graph.output.append(h.make_tensor_value_info(o, h.np_dtype_to_tensor_dtype(r.dtype), r.shape))
    model = h.make_model(graph, opset_imports=opsets, ir_version=8)
    files = {f"node/{name}/model.onnx": model.SerializeToString()}
    for i, (n, x) in enumerate(feeds.items()):
        files[f"node/{name}/test_data_set_0/input_{i}.pb"] = nh.from_array(x, n).SerializeToString()
    for i, r in enumerate(results):
        files[f"node/{name}/test_data_set_0/output_{i}.pb"] = nh.from_array(np.asarray(r, order="C")).SerializeToString()
    cases.append((name, op, opset, rtol, atol, files))


rng = np.random.default_rng(7)
def f(*shape): return rng.standard_normal(shape).astype(np.float32)
def i32(*v): return np.array(v, np.int32)
MS = dict(domain="com.microsoft")

# --- com.microsoft: attention
x, w, b = f(2, 5, 8), f(8, 24), f(24)
A = dict(op="Attention", num_heads=2, constants=(1, 2), **MS)
case("microsoft_attention", inputs=[x, w, b], **A)
case("microsoft_attention_mask_2d", inputs=[x, w, b, np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)], **A)
case("microsoft_attention_mask_3d", inputs=[x, w, b, rng.integers(0, 2, (2, 5, 5)).astype(np.int32) | np.eye(5, dtype=np.int32)], **A)
case("microsoft_attention_mask_lengths", inputs=[x, w, b, i32(3, 5)], **A)
case("microsoft_attention_mask_ends_starts", inputs=[x, w, b, i32(4, 5, 1, 0)], **A)
case("microsoft_attention_unidirectional", inputs=[x, w, b], unidirectional=1, **A)
case("microsoft_attention_unidirectional_mask", inputs=[x, w, b, i32(3, 5)], unidirectional=1, **A)
case("microsoft_attention_past", inputs=[x, w, b, None, f(2, 2, 2, 3, 4)], outputs=2, **A)
case("microsoft_attention_past_unidirectional", inputs=[x, w, b, None, f(2, 2, 2, 3, 4)], outputs=2, unidirectional=1, **A)
case("microsoft_attention_bias", inputs=[x, w, b, None, None, f(2, 2, 5, 5)], **A)
case("microsoft_attention_scale", inputs=[x, w, b], scale=0.3, **A)
case("microsoft_attention_widths", inputs=[x, f(8, 20), f(20)], qkv_hidden_sizes=[8, 8, 4], **A)

q, k, v, bias = f(2, 5, 8), f(2, 6, 8), f(2, 6, 8), f(24)
M = dict(op="MultiHeadAttention", num_heads=2, **MS)
case("microsoft_multi_head_attention", inputs=[q, k, v], **M)
case("microsoft_multi_head_attention_bias", inputs=[q, k, v, bias], **M)
case("microsoft_multi_head_attention_padding", inputs=[q, k, v, bias, np.array([[1, 1, 1, 1, 0, 0], [1] * 6], np.int32)], **M)
case("microsoft_multi_head_attention_lengths", inputs=[q, k, v, None, i32(4, 6)], **M)
case("microsoft_multi_head_attention_scores", inputs=[q, k, v, None, None, f(1, 2, 5, 6)], **M)
case("microsoft_multi_head_attention_past", inputs=[q, f(2, 5, 8), f(2, 5, 8), None, None, None, f(2, 2, 3, 4), f(2, 2, 3, 4)], outputs=3, **M)
case("microsoft_multi_head_attention_causal", inputs=[q, f(2, 5, 8), f(2, 5, 8)], unidirectional=1, **M)
case("microsoft_multi_head_attention_cross", inputs=[q, f(2, 2, 6, 4), f(2, 2, 6, 4)], **M)

# --- com.microsoft: norms and embeddings
case("microsoft_skip_layer_norm", op="SkipLayerNormalization", inputs=[f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], outputs=4, wanted=(0, 3), epsilon=1e-5, **MS)
case("microsoft_skip_layer_norm_plain", op="SkipLayerNormalization", inputs=[f(2, 3, 8), f(3, 8), f(8)], **MS)
case("microsoft_skip_simplified_layer_norm", op="SkipSimplifiedLayerNormalization", inputs=[f(2, 3, 8), f(2, 3, 8), f(8), f(8)], outputs=4, wanted=(0, 3), epsilon=1e-5, **MS)
ids = rng.integers(0, 7, (2, 4)).astype(np.int32)
E = dict(op="EmbedLayerNormalization", **MS)
case("microsoft_embed_layer_norm", inputs=[ids, ids % 2, f(7, 6), f(9, 6), f(2, 6), f(6), f(6), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)], outputs=3, **E)
case("microsoft_embed_layer_norm_no_segments", inputs=[ids, None, f(7, 6), f(9, 6), None, f(6), f(6)], outputs=2, **E)
case("microsoft_embed_layer_norm_positions", inputs=[ids, None, f(7, 6), f(9, 6), None, f(6), f(6), None, i32(3, 2, 1, 0).reshape(1, 4).repeat(2, 0)], outputs=2, **E)
case("simplified_layer_norm", op="SimplifiedLayerNormalization", inputs=[f(2, 3, 8), f(8)], epsilon=1e-5)

# --- com.microsoft: pointwise and products
case("microsoft_gelu", op="Gelu", inputs=[f(3, 5)], **MS)
case("microsoft_bias_gelu", op="BiasGelu", inputs=[f(3, 5), f(5)], **MS)
case("microsoft_fast_gelu", op="FastGelu", inputs=[f(3, 5), f(5)], **MS)
case("microsoft_fast_gelu_no_bias", op="FastGelu", inputs=[f(3, 5)], **MS)
case("microsoft_quick_gelu", op="QuickGelu", inputs=[f(3, 5)], **MS)
case("microsoft_fused_mat_mul", op="FusedMatMul", inputs=[f(2, 4, 3), f(2, 5, 4)], transA=1, transB=1, alpha=0.5, **MS)
case("microsoft_fused_mat_mul_batch", op="FusedMatMul", inputs=[f(3, 2, 4), f(2, 4, 5)], transBatchA=1, **MS)
case("microsoft_fused_gemm", op="FusedGemm", inputs=[f(2, 4), f(4, 3), f(3)], activation="Relu", **MS)

# --- com.microsoft: rotary embedding
cos, sin = f(9, 2), f(9, 2)
pos = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]], np.int64)
R = dict(op="RotaryEmbedding", **MS)
case("microsoft_rotary", inputs=[f(2, 5, 8), pos, cos, sin], **R)
case("microsoft_rotary_offset", inputs=[f(2, 5, 8), np.array([2], np.int64), cos, sin], **R)
case("microsoft_rotary_interleaved", inputs=[f(2, 5, 8), pos, cos, sin], interleaved=1, **R)
case("microsoft_rotary_4d", inputs=[f(2, 3, 5, 4), pos, cos, sin], **R)
case("microsoft_rotary_partial", inputs=[f(2, 5, 12), pos, cos, sin], num_heads=2, rotary_embedding_dim=4, **R)

# --- old opsets
for op in ("Softmax", "LogSoftmax", "Hardmax"):
    for axis in (0, 1, 2):
        case(f"{op.lower()}_11_axis_{axis}", op=op, inputs=[f(2, 3, 4)], opset=11, axis=axis)
case("clip_6", op="Clip", inputs=[f(3, 4)], opset=10, min=-0.5, max=0.5)
case("dropout_7", op="Dropout", inputs=[f(3, 4)], opset=9)
case("batch_norm_7", op="BatchNormalization", inputs=[f(2, 3, 4, 4), f(3), f(3), f(3), abs(f(3))], opset=8)
case("upsample_7_nearest", op="Upsample", inputs=[f(1, 1, 2, 3)], opset=7, scales=[1.0, 1.0, 2.0, 3.0])
case("upsample_9_linear", op="Upsample", inputs=[f(1, 1, 2, 3), np.array([1, 1, 2, 2], np.float32)], constants=(1,), opset=9, mode="linear")
case("resize_10_grow", op="Resize", inputs=[f(1, 1, 3, 3), np.array([1, 1, 2, 2], np.float32)], constants=(1,), opset=10)
case("resize_10_shrink", op="Resize", inputs=[f(1, 1, 5, 5), np.array([1, 1, 0.6, 0.6], np.float32)], constants=(1,), opset=10)
case("reduce_sum_11", op="ReduceSum", inputs=[f(2, 3, 4)], opset=11, axes=[0, -1], keepdims=0)
case("reduce_log_sum_exp_13", op="ReduceLogSumExp", inputs=[f(2, 3, 4)], opset=13, axes=[1])
case("gemm_7_vector", op="Gemm", inputs=[f(4, 2), f(3, 4), f(3)], opset=7, transA=1, transB=1, alpha=0.5, beta=2.0)
case("group_norm_21", op="GroupNormalization", inputs=[f(2, 4, 3), f(4), f(4)], opset=21, num_groups=2)
case("conv_same_lower_strided", op="Conv", inputs=[f(1, 2, 7, 6), f(3, 2, 3, 2)], auto_pad="SAME_LOWER", strides=[2, 3])
case("conv_dilated_grouped", op="Conv", inputs=[f(2, 4, 9), f(6, 2, 3), f(6)], dilations=[2], group=2, pads=[1, 2], strides=[2])
case("conv_transpose_output_shape", op="ConvTranspose", inputs=[f(1, 2, 3, 3), f(2, 3, 3, 3), f(3)], strides=[3, 2], output_shape=[10, 8], auto_pad="SAME_UPPER")
case("conv_transpose_group", op="ConvTranspose", inputs=[f(1, 4, 5), f(4, 3, 3)], group=2, dilations=[2], pads=[1, 2], strides=[2], output_padding=[1])
case("max_pool_ceil_indices", op="MaxPool", inputs=[f(1, 2, 6, 7)], outputs=2, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, pads=[1, 0, 1, 1])
case("average_pool_ceil_pad", op="AveragePool", inputs=[f(1, 2, 6, 7)], opset=19, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1, 1, 1, 1], count_include_pad=1)
case("global_lp_pool_3", op="GlobalLpPool", inputs=[f(2, 3, 4)], p=3)
case("lrn_five", op="LRN", inputs=[f(1, 6, 2, 2)], size=5, alpha=0.01, beta=0.6, bias=1.5)
for n, eq, ops in [("trace", "ii->i", [f(3, 3)]), ("three", "ij,jk,kl->il", [f(2, 3), f(3, 4), f(4, 2)]), ("dots", "...ij,jk->...ik", [f(2, 3, 4), f(4, 5)]),
                   ("outer", "i,j->ij", [f(3), f(4)]), ("implicit", "bij,bkj", [f(2, 3, 4), f(2, 5, 4)]), ("sum", "ij->", [f(3, 4)]),
                   ("hadamard", "ij,ij->ji", [f(3, 4), f(3, 4)]), ("heads", "bqhd,bkhd->bhqk", [f(2, 3, 2, 4), f(2, 5, 2, 4)])]:
    case(f"einsum_{n}", op="Einsum", inputs=ops, equation=eq)
case("pow_int_float", op="Pow", inputs=[np.array([1, 2, 3], np.int64), np.array([2.5, 0.5, 2], np.float32)], opset=15)
case("mod_negative", op="Mod", inputs=[np.array([-7, 7, -7, 7], np.int64), np.array([3, -3, -3, 3], np.int64)])
case("cross_entropy_weighted", op="SoftmaxCrossEntropyLoss", inputs=[f(3, 4, 2), np.array([[0, 1], [3, -1], [2, 2]], np.int64), abs(f(4))], outputs=2, ignore_index=-1)

# --- quantisation
u8 = lambda *s: rng.integers(0, 256, s).astype(np.uint8)
i8 = lambda *s: rng.integers(-128, 128, s).astype(np.int8)
case("q_linear_conv_channels", op="QLinearConv", inputs=[u8(1, 2, 5, 5), np.float32(0.02), np.uint8(120), i8(3, 2, 3, 3), abs(f(3)) * 0.01 + 0.01, np.zeros(3, np.int8), np.float32(0.3), np.uint8(100), rng.integers(-50, 50, 3).astype(np.int32)], constants=(1, 2, 3, 4, 5, 6, 7, 8), pads=[1, 1, 1, 1], rtol=0, atol=0)
case("mat_mul_integer_rows", op="MatMulInteger", inputs=[u8(3, 4), i8(4, 2), np.uint8(7), np.array([3, -2], np.int8)], constants=(3,))
case("dequantize_axis", op="DequantizeLinear", inputs=[i8(2, 3, 4), abs(f(3)), i8(3)], axis=1)
case("quantize_axis_last", op="QuantizeLinear", inputs=[f(2, 3), abs(f(3)) + 0.01, u8(3)], axis=-1, rtol=0, atol=0)

sc = lambda v: np.float32(v)
case("microsoft_mat_mul_integer_to_float", op="MatMulIntegerToFloat", inputs=[u8(3, 4), i8(4, 5), sc(0.1), abs(f(5)), np.uint8(9), i8(5), f(5)], constants=(1, 3, 5, 6), **MS)
case("microsoft_dynamic_quantize_mat_mul", op="DynamicQuantizeMatMul", inputs=[f(2, 3, 4), i8(4, 5), abs(f(5)), i8(5), f(5)], constants=(1, 2, 3, 4), **MS)
QB = dict(constants=(1, 2, 4, 5, 6, 7), rtol=0, atol=0, **MS)
case("microsoft_q_linear_add", op="QLinearAdd", inputs=[u8(3, 4), sc(0.1), np.uint8(100), u8(4), sc(0.2), np.uint8(7), sc(0.3), np.uint8(80)], **QB)
case("microsoft_q_linear_mul", op="QLinearMul", inputs=[i8(3, 4), sc(0.1), np.int8(10), i8(3, 1), sc(0.2), np.int8(7), sc(3.0), np.int8(-8)], **QB)
QU = dict(constants=(1, 2, 3, 4), rtol=0, atol=0, **MS)
case("microsoft_q_linear_sigmoid", op="QLinearSigmoid", inputs=[u8(3, 4), sc(0.05), np.uint8(128), sc(1 / 256), np.uint8(0)], **QU)
case("microsoft_q_linear_leaky_relu", op="QLinearLeakyRelu", inputs=[i8(3, 4), sc(0.05), np.int8(3), sc(0.04), np.int8(-5)], alpha=0.1, **QU)
case("microsoft_fused_conv", op="FusedConv", inputs=[f(1, 2, 5), f(3, 2, 3), f(3)], activation="HardSigmoid", activation_params=[0.3, 0.4], pads=[1, 1], **MS)
case("microsoft_fused_conv_sum", op="FusedConv", inputs=[f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), f(1, 3, 3, 3)], activation="Relu", **MS)

# --- recurrent layers
S, B, I, H = 4, 3, 2, 5
lens = i32(4, 2, 3)
for d, name in ((1, "forward"), (1, "reverse"), (2, "bidirectional")):
    xs = f(S, B, I)
    case(f"lstm_{name}", op="LSTM", inputs=[xs, f(d, 4 * H, I), f(d, 4 * H, H), f(d, 8 * H), lens, f(d, B, H), f(d, B, H), f(d, 3 * H)], outputs=3, hidden_size=H, direction=name)
    case(f"lstm_clip_{name}", op="LSTM", inputs=[xs, f(d, 4 * H, I), f(d, 4 * H, H)], outputs=3, hidden_size=H, direction=name, clip=0.7)
    case(f"gru_{name}", op="GRU", inputs=[xs, f(d, 3 * H, I), f(d, 3 * H, H), f(d, 6 * H), lens, f(d, B, H)], outputs=2, hidden_size=H, direction=name)
    case(f"gru_reset_{name}", op="GRU", inputs=[xs, f(d, 3 * H, I), f(d, 3 * H, H), f(d, 6 * H)], outputs=2, hidden_size=H, direction=name, linear_before_reset=1)
    case(f"rnn_{name}", op="RNN", inputs=[xs, f(d, H, I), f(d, H, H), f(d, 2 * H), lens, f(d, B, H)], outputs=2, hidden_size=H, direction=name)
case("lstm_activations", op="LSTM", inputs=[f(S, B, I), f(1, 4 * H, I), f(1, 4 * H, H)], outputs=3, hidden_size=H, activations=["HardSigmoid", "LeakyRelu", "Elu"], activation_alpha=[0.3, 0.05, 0.7], activation_beta=[0.4])
case("gru_activations", op="GRU", inputs=[f(S, B, I), f(1, 3 * H, I), f(1, 3 * H, H)], outputs=2, hidden_size=H, activations=["HardSigmoid", "Softsign"], activation_alpha=[0.3], activation_beta=[0.4])
case("rnn_relu_bidirectional", op="RNN", inputs=[f(S, B, I), f(2, H, I), f(2, H, H)], outputs=2, hidden_size=H, direction="bidirectional", activations=["Relu", "Tanh"])

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

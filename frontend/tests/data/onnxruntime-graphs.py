"""Writes onnxruntime-graphs.tar: models of several nodes or of `ai.onnx.ml`, inputs, and onnxruntime's outputs for them.

The layout is that of ONNX's node suite. Sequences, whose values are tensors only within a graph; boxes that detectors
select; what scikit-learn's pipelines become (skl2onnx 1.20, scikit-learn 1.9), and trees, linear models and support
vector machines with every option; and decoders of transformers 5. Recorded with onnxruntime 1.32, its optimisations off. Compress with `zstd -19`.
"""
import io, sys, tarfile, warnings
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper as nh

warnings.filterwarnings("ignore")
ort.set_default_logger_severity(4)
ML = "ai.onnx.ml"
cases = []
rng = np.random.default_rng(7)
def f(*shape): return rng.standard_normal(shape).astype(np.float32)
def i64(*v): return np.array(v, np.int64)


def strip(graph):
    """What exporters say of themselves and of the machine is not ours to keep."""
    graph.doc_string = ""
    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                strip(attribute.g)


def tables(result):
    """A list of maps, as ZipMap gives it, as a table."""
    return np.array([list(row.values()) for row in result], np.float32) if isinstance(result, list) else result


def record(name, model, feeds, rtol=1e-4, atol=1e-5):
    strip(model.graph)
    model.doc_string = model.domain = ""
    for i in model.graph.input:
        shape = feeds[i.name].shape
        i.CopyFrom(h.make_tensor_value_info(i.name, h.np_dtype_to_tensor_dtype(feeds[i.name].dtype), shape))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = [tables(r) for r in session.run(None, feeds)]
    assert not any(np.isnan(r).any() for r in results), name
    files = {f"node/{name}/model.onnx": model.SerializeToString()}
    for i, info in enumerate(model.graph.input):
        files[f"node/{name}/test_data_set_0/input_{i}.pb"] = nh.from_array(feeds[info.name], info.name).SerializeToString()
    for i, r in enumerate(results):
        files[f"node/{name}/test_data_set_0/output_{i}.pb"] = nh.from_array(np.asarray(r, order="C")).SerializeToString()
    ops = ",".join(sorted({n.op_type for n in model.graph.node}))
    cases.append((name, ops, model.opset_import[0].version, rtol, atol, files))


def graph(name, nodes, feeds, outputs, constants={}, opset=17, ml=3, **tolerance):
    """A model of these nodes; outputs are names."""
    info = [h.make_tensor_value_info(k, h.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
    inits = [nh.from_array(np.asarray(v), k) for k, v in constants.items()]
    g = h.make_graph(nodes, name, info, [h.make_empty_tensor_value_info(o) for o in outputs.split()], inits)
    opsets = [h.make_opsetid("", opset)] + ([h.make_opsetid(ML, ml)] if any(n.domain == ML for n in nodes) else [])
    record(name, h.make_model(g, opset_imports=opsets, ir_version=8), feeds, **tolerance)


def n(op, inputs, outputs, **attrs):
    return h.make_node(op, [x if x != "_" else "" for x in inputs.split()], outputs.split(), **attrs)


# --- boxes
def boxes(batch, count, center):
    corner, size = rng.uniform(0, 8, (batch, count, 2)), rng.uniform(1, 4, (batch, count, 2))
    both = [corner, size] if center else [corner, corner + size]
    return np.concatenate(both, 2).astype(np.float32)

def nms(name, batch=1, classes=1, count=12, center=0, opset=11, most=3, overlap=None, score=None, flip=False):
    b = boxes(batch, count, center)
    if flip:
        b[:, ::2] = b[:, ::2][..., [2, 3, 0, 1]]
    feeds = dict(boxes=b, scores=rng.uniform(0, 1, (batch, classes, count)).astype(np.float32))
    names, constants = "boxes scores", {}
    for key, v, dtype in (("most", most, np.int64), ("overlap", overlap, np.float32), ("score", score, np.float32)):
        names += f" {key}" if v is not None else " _"
        if v is not None:
            constants[key] = np.array([v], dtype)
    attrs = dict(center_point_box=1) if center else {}
    graph(name, [n("NonMaxSuppression", names.rstrip(" _"), "y", **attrs)], feeds, "y", constants, opset=opset)

nms("nms_plain", overlap=0.3)
nms("nms_10", overlap=0.3, score=0.4, opset=10)
nms("nms_center", center=1, overlap=0.2)
nms("nms_batches_classes", batch=2, classes=3, most=5, overlap=0.4, score=0.3)
nms("nms_flipped", flip=True, overlap=0.3, most=20)
nms("nms_no_overlap_allowed", most=20)
nms("nms_only_score", score=0.5, most=20, overlap=1.0)
nms("nms_nothing_asked", most=None, overlap=0.5)
nms("nms_nothing_passes", score=2.0, overlap=0.5)
# What detectors do with it: the boxes and scores of what is selected.
graph("nms_gathered", [n("NonMaxSuppression", "boxes scores most overlap score", "places"),
                       n("Gather", "places two", "box", axis=1), n("Squeeze", "box one", "flat"),
                       n("Squeeze", "boxes zero", "all"), n("Gather", "all flat", "y")],
      dict(boxes=boxes(1, 10, 0), scores=rng.uniform(0, 1, (1, 2, 10)).astype(np.float32)), "places y",
      dict(most=i64(4), overlap=np.array([0.5], np.float32), score=np.array([0.2], np.float32), two=i64(2), one=i64(1), zero=i64(0)))

# --- sequences
A = dict(a=f(2, 3), b=f(2, 3), c=f(2, 3))
build = n("SequenceConstruct", "a b c", "s")
for name, position in (("first", 0), ("last", -1), ("second", 1)):
    graph(f"sequence_at_{name}", [build, n("SequenceAt", "s p", "y")], A, "y", dict(p=np.int64(position)))
graph("sequence_length", [build, n("SequenceErase", "s", "t"), n("SequenceLength", "t", "y")], dict(A, a=f(2, 3)), "y")
for name, position in (("end", None), ("front", 0), ("negative", -1), ("behind", 3)):
    graph(f"sequence_insert_{name}", [build, n("SequenceInsert", "s b" + (" p" if position is not None else ""), "t"), n("ConcatFromSequence", "t", "y", axis=0)],
          A, "y", dict(p=np.int32(position)) if position is not None else {})
for name, position in (("end", None), ("front", 0), ("negative", -2)):
    graph(f"sequence_erase_{name}", [build, n("SequenceErase", "s" + (" p" if position is not None else ""), "t"), n("ConcatFromSequence", "t", "y", axis=1)],
          A, "y", dict(p=np.int64(position)) if position is not None else {})
for name, attrs in (("0", dict(axis=0)), ("1", dict(axis=1)), ("minus", dict(axis=-1)), ("new_0", dict(axis=0, new_axis=1)), ("new_2", dict(axis=2, new_axis=1)), ("new_minus", dict(axis=-1, new_axis=1))):
    graph(f"sequence_concat_{name}", [build, n("ConcatFromSequence", "s", "y", **attrs)], A, "y")
graph("sequence_empty", [n("SequenceEmpty", "", "s"), n("SequenceInsert", "s a", "t"), n("SequenceInsert", "t b zero", "u"), n("Identity", "u", "v"), n("SequenceLength", "v", "l"), n("ConcatFromSequence", "v", "y", axis=0)],
      dict(a=A["a"], b=A["b"]), "l y", dict(zero=np.int64(0)))
X = dict(x=f(3, 7, 2))
for name, attrs, split in (("ones", dict(axis=1), None), ("squeezed", dict(axis=1, keepdims=0), None), ("scalar", dict(axis=1), np.int64(3)), ("scalar_even", dict(axis=-3), np.int64(2)), ("sizes", dict(axis=1), i64(1, 4, 2)), ("default", {}, np.int32(2))):
    graph(f"sequence_split_{name}", [n("SplitToSequence", "x" + (" k" if split is not None else ""), "s", **attrs), n("SequenceLength", "s", "l"), n("SequenceAt", "s first", "a"), n("SequenceAt", "s last", "b")],
          X, "l a b", dict(first=np.int64(0), last=np.int64(-1), **({"k": split} if split is not None else {})))

def body(nodes, inputs, outputs, more=()):
    make = lambda name, kind: (h.make_tensor_value_info(name, T.INT64, []) if kind == "i" else h.make_tensor_value_info(name, T.BOOL, []) if kind == "b"
                               else h.make_tensor_sequence_value_info(name, T.FLOAT, None) if kind == "s" else h.make_tensor_value_info(name, T.FLOAT, None))
    parse = lambda text: [make(*item.split(":")) for item in text.split()]
    return h.make_graph(nodes, "body", parse(inputs), parse(outputs), list(more))

# A list that a loop makes: as many steps as a constant, a dim or an input says.
grow = lambda: body([n("Gather", "x i", "e", axis=1), n("Mul", "e e", "q"), n("SequenceInsert", "s q", "t"), n("Identity", "c", "go")], "i:i c:b s:s", "go:b t:s")
graph("sequence_loop_constant", [n("SequenceEmpty", "", "s0"), n("Loop", "m _ s0", "s1", body=grow()), n("ConcatFromSequence", "s1", "y", axis=1, new_axis=1)], X, "y", dict(m=np.int64(4)))
graph("sequence_loop_dim", [n("Shape", "x", "d"), n("Gather", "d one", "m"), n("SequenceEmpty", "", "s0"), n("Loop", "m _ s0", "s1", body=grow()), n("ConcatFromSequence", "s1", "y", axis=1, new_axis=1)], X, "y", dict(one=np.int64(1)))
graph("sequence_loop_input", [n("SequenceEmpty", "", "s0"), n("Loop", "m _ s0", "s1", body=grow()), n("ConcatFromSequence", "s1", "y", axis=1, new_axis=1)], dict(X, m=np.array(3, np.int64)), "y")
take = body([n("SequenceAt", "s i", "e"), n("Add", "v e", "w"), n("Identity", "c", "go")], "i:i c:b v:t", "go:b w:t")
graph("sequence_loop_reads", [n("SplitToSequence", "x", "s", axis=1, keepdims=0), n("SequenceLength", "s", "m"), n("SequenceAt", "s zero", "v0"), n("Loop", "m _ v0", "y", body=take)], X, "y", dict(zero=np.int64(0)))
branch = lambda op: body([n("SequenceAt", "s one", "e"), n(op, "e a", "r")], "", "r:t")
graph("sequence_in_branches", [build, n("ReduceSum", "a", "sum", keepdims=0), n("Greater", "sum zero", "more"), n("If", "more", "y", then_branch=branch("Add"), else_branch=branch("Mul"))], A, "y", dict(one=np.int64(1), zero=np.float32(0)))

# --- signals without a dim for their parts
for name, attrs, window in (("window", {}, True), ("plain", {}, False), ("twosided", dict(onesided=0), True)):
    graph(f"stft_rank_2_{name}", [n("STFT", "x step " + ("w" if window else "_ length"), "y", **attrs)], dict(x=f(2, 40)), "y",
          dict(step=np.int64(5), **({"w": np.hanning(16).astype(np.float32)} if window else {"length": np.int64(16)})), atol=1e-4)

# --- ai.onnx.ml by hand: every option of trees, linear models, support vectors
def ml(name, op, feeds, outputs="y", ml=3, tolerance={}, **attrs):
    graph(name, [h.make_node(op, list(feeds), outputs.split(), domain=ML, name="node", **attrs)], feeds, outputs, ml=ml, **tolerance)

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
def trees(modes, shift=0, missing=False, features=3):
    """A full tree of depth two for each mode, whose thresholds are those of samples too, and a stump."""
    a = dict(nodes_treeids=[], nodes_nodeids=[], nodes_featureids=[], nodes_modes=[], nodes_values=[], nodes_truenodeids=[], nodes_falsenodeids=[])
    leaves = []
    for tree, mode in enumerate(modes):
        ids = [k + shift for k in range(7)]
        for k in range(7):
            leaf = k > 2
            for key, v in zip(a, (tree + shift, ids[k], 0 if leaf else int(rng.integers(features)), "LEAF" if leaf else mode if k else modes[(tree + 1) % len(modes)],
                                  0.0 if leaf else float(rng.integers(-1, 2)), 0 if leaf else ids[2 * k + 1], 0 if leaf else ids[2 * k + 2])):
                a[key].append(v)
            if leaf:
                leaves.append((tree + shift, ids[k]))
    tree = len(modes) + shift
    for key, v in zip(a, (tree, 0, 0, "LEAF", 0.0, 0, 0)):
        a[key].append(v)
    leaves.append((tree, 0))
    if missing:
        a["nodes_missing_value_tracks_true"] = rng.integers(0, 2, len(a["nodes_modes"])).tolist()
    return a, leaves

def weights(kind, leaves, targets, each=1, low=-1.0, classes=None):
    rows = [(t, k, c) for t, k in leaves for c in rng.choice(classes if classes is not None else targets, each, replace=False)]
    return {f"{kind}_treeids": [r[0] for r in rows], f"{kind}_nodeids": [r[1] for r in rows], f"{kind}_ids": [int(r[2]) for r in rows], f"{kind}_weights": rng.uniform(low, 1, len(rows)).round(2).tolist()}

V = rng.integers(-2, 3, (9, 3)).astype(np.float32)
for mode in MODES:
    a, leaves = trees([mode])
    ml(f"tree_{mode.lower()}", "TreeEnsembleRegressor", dict(x=V), n_targets=1, **a, **weights("target", leaves, 1))
a, leaves = trees(MODES, shift=2)
for agg in ("SUM", "AVERAGE", "MIN", "MAX"):
    for targets, each in ((1, 1), (4, 1), (4, 4)):
        # Where no tree says anything of a target, onnxruntime leaves its base value out as well.
        base = rng.uniform(-1, 1, targets).round(2).tolist() if each == targets else []
        ml(f"tree_{agg.lower()}_{targets}_{each}", "TreeEnsembleRegressor", dict(x=V), n_targets=targets, aggregate_function=agg, **(dict(base_values=base) if base else {}), **a, **weights("target", leaves, targets, each))
for post in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
    # A quantile is of probabilities.
    a, leaves = trees(("BRANCH_LEQ",))
    low = 0.1 if post == "PROBIT" else -1.0
    agg = "AVERAGE" if post == "PROBIT" else "SUM"
    ml(f"tree_{post.lower()}_1", "TreeEnsembleRegressor", dict(x=V), n_targets=1, post_transform=post, aggregate_function=agg, **a, **weights("target", leaves, 1, low=low))
    ml(f"tree_{post.lower()}_3", "TreeEnsembleRegressor", dict(x=V), n_targets=3, post_transform=post, aggregate_function=agg, **a, **weights("target", leaves, 3, 3, low=low))
a, leaves = trees(MODES[:4], missing=True)
M = V.copy(); M[rng.random(M.shape) < 0.4] = np.nan
ml("tree_missing", "TreeEnsembleRegressor", dict(x=M), n_targets=2, **a, **weights("target", leaves, 2, 2))
a, leaves = trees(MODES[:2])
ml("tree_f64", "TreeEnsembleRegressor", dict(x=V.astype(np.float64)), n_targets=2, **a, **weights("target", leaves, 2, 2))
w = weights("target", leaves, 1)
values = np.array(a.pop("nodes_values"), np.float64) + 1e-12
ml("tree_f64_values", "TreeEnsembleRegressor", dict(x=V.astype(np.float64)), n_targets=1, nodes_values_as_tensor=nh.from_array(values, "values"),
   target_weights_as_tensor=nh.from_array(np.array(w.pop("target_weights")), "weights"), **a, **w)
a, leaves = trees(("BRANCH_LEQ", "BRANCH_LEQ"))
for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
    for low, sign in ((0.0, "positive"), (-1.0, "mixed")):
        for ids, which in (([0], "first"), ([1], "second")):
            ml(f"tree_classes_2_{post.lower()}_{sign}_{which}", "TreeEnsembleClassifier", dict(x=V), "label y", classlabels_int64s=[4, 9], post_transform=post, **a, **weights("class", leaves, 1, low=low, classes=ids))
    ml(f"tree_classes_2_{post.lower()}_base", "TreeEnsembleClassifier", dict(x=V), "label y", classlabels_int64s=[4, 9], post_transform=post, base_values=[0.3], **a, **weights("class", leaves, 1, classes=[0]))
    ml(f"tree_classes_3_{post.lower()}", "TreeEnsembleClassifier", dict(x=V), "label y", classlabels_int64s=[4, 9, 2], post_transform=post, base_values=[0.1, -0.2, 0.3], **a, **weights("class", leaves, 3, 2))
ml("tree_classes_i64", "TreeEnsembleClassifier", dict(x=V.astype(np.int64)), "label y", classlabels_int64s=[0, 1, 2], **a, **weights("class", leaves, 3, 3))
ml("tree_classes_f64", "TreeEnsembleClassifier", dict(x=V.astype(np.float64)), "label y", classlabels_int64s=[0, 1, 2], **a, **weights("class", leaves, 3, 3))
# Labels of texts that nothing reads.
def scores_alone(name, op, **attrs):
    graph(name, [h.make_node(op, ["x"], ["label", "y"], domain=ML, **attrs)], dict(x=V), "y")
scores_alone("tree_classes_texts", "TreeEnsembleClassifier", classlabels_strings=["no", "maybe", "yes"], **a, **weights("class", leaves, 3, 3))

# TreeEnsemble of version 5, which has leaves in lists of their own.
def ensemble(name, modes, members=None, targets=2, agg=1, post=0, dtype=np.float32, **more):
    nodes = len(modes)
    leaf = nodes + 1
    links = dict(nodes_truenodeids=[min(2 * k + 1, 10**6) for k in range(nodes)], nodes_falsenodeids=[2 * k + 2 for k in range(nodes)])
    for side in ("true", "false"):
        ids = links[f"nodes_{side}nodeids"]
        links[f"nodes_{side}leafs"] = [int(k >= nodes) for k in ids]
        links[f"nodes_{side}nodeids"] = [k - nodes if k >= nodes else k for k in ids]
    attrs = dict(n_targets=targets, aggregate_function=agg, post_transform=post, tree_roots=[0], nodes_featureids=rng.integers(0, 3, nodes).tolist(),
                 nodes_splits=nh.from_array(rng.integers(-1, 2, nodes).astype(dtype), "splits"), nodes_modes=nh.from_array(np.array(modes, np.uint8), "modes"),
                 leaf_targetids=rng.integers(0, targets, leaf).tolist(), leaf_weights=nh.from_array(rng.uniform(-1, 1, leaf).round(2).astype(dtype), "weights"), **links, **more)
    if members is not None:
        attrs["membership_values"] = nh.from_array(np.array(members, dtype), "members")
    ml(name, "TreeEnsemble", dict(x=V.astype(dtype)), ml=5, **attrs)
ensemble("ensemble_leq", [0] * 7)
# The numbers of LOGISTIC and SOFTMAX, which onnxruntime exchanges, are left to a test by hand.
ensemble("ensemble_modes", [0, 1, 2, 3, 4, 5, 0], agg=0, post=3, targets=3)
ensemble("ensemble_f64", [1, 1, 3], dtype=np.float64, targets=1)
ensemble("ensemble_members", [6, 0, 6], members=[-2, 1, np.nan, 0, 2, -1, np.nan])
ensemble("ensemble_min", [0, 2, 4], agg=2)
ensemble("ensemble_max", [0, 2, 4], agg=3)

W = f(6, 4)
for targets in (1, 3):
    ml(f"linear_{targets}", "LinearRegressor", dict(x=W), coefficients=f(4 * targets).tolist(), intercepts=f(targets).tolist(), targets=targets)
    ml(f"linear_{targets}_plain", "LinearRegressor", dict(x=W), coefficients=f(4 * targets).tolist(), targets=targets)
ml("linear_one_sample", "LinearRegressor", dict(x=f(4)), coefficients=f(8).tolist(), targets=2)
for post in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
    ml(f"linear_{post.lower()}", "LinearRegressor", dict(x=W), coefficients=f(8).tolist(), targets=2, post_transform=post)
for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
    for classes, rows in ((2, 1), (2, 2), (3, 3)):
        ml(f"linear_classes_{classes}_{rows}_{post.lower()}", "LinearClassifier", dict(x=W), "label y", coefficients=f(4 * rows).tolist(), intercepts=f(rows).tolist(),
           classlabels_ints=[4, 9, 2][:classes], post_transform=post, multi_class=int(classes > 2))
ml("linear_classes_i64", "LinearClassifier", dict(x=(3 * W).astype(np.int64)), "label y", coefficients=f(12).tolist(), intercepts=f(3).tolist(), classlabels_ints=[0, 1, 2])
graph("linear_classes_texts", [h.make_node("LinearClassifier", ["x"], ["label", "y"], domain=ML, coefficients=f(12).tolist(), intercepts=f(3).tolist(), classlabels_strings=["a", "b", "c"])], dict(x=W), "y")

S = f(7, 4).round(2)
for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
    params = dict(kernel_type=kernel, kernel_params=[0.3, 0.2, 3.0])
    ml(f"svr_{kernel.lower()}", "SVMRegressor", dict(x=W), support_vectors=S.ravel().tolist(), coefficients=f(7).tolist(), n_supports=7, rho=[0.1], **params)
    ml(f"svc_{kernel.lower()}", "SVMClassifier", dict(x=W), "label y", support_vectors=S.ravel().tolist(), coefficients=f(14).tolist(), vectors_per_class=[3, 2, 2], rho=[0.1, -0.2, 0.05], classlabels_ints=[4, 9, 2], **params)
ml("svr_one_class", "SVMRegressor", dict(x=W), support_vectors=S.ravel().tolist(), coefficients=f(7).tolist(), n_supports=7, rho=[0.1], kernel_type="RBF", kernel_params=[0.3, 0.0, 0.0], one_class=1)
ml("svr_no_vectors", "SVMRegressor", dict(x=W), coefficients=f(4).tolist(), n_supports=0, rho=[0.1], kernel_params=[0.3, 0.0, 0.0])
ml("svc_no_vectors", "SVMClassifier", dict(x=W), "label y", coefficients=f(12).tolist(), rho=[0.1], classlabels_ints=[4, 9, 2], kernel_params=[0.3, 0.0, 0.0])
for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
    for classes, counts in ((2, [4, 3]), (3, [3, 2, 2]), (4, [2, 2, 1, 2])):
        pairs = classes * (classes - 1) // 2
        for proba in (0, 1):
            more = dict(prob_a=(-abs(f(pairs)) - 0.5).tolist(), prob_b=(f(pairs) / 5).tolist()) if proba else {}
            ml(f"svc_{classes}_{post.lower()}" + "_proba" * proba, "SVMClassifier", dict(x=W), "label y", support_vectors=S.ravel().tolist(), coefficients=f(7 * (classes - 1)).tolist(), vectors_per_class=counts,
               rho=f(pairs).tolist(), classlabels_ints=[4, 9, 2, 0][:classes], kernel_type="RBF", kernel_params=[0.3, 0.0, 0.0], post_transform=post, tolerance=dict(atol=1e-4), **more)

Z = np.vstack([W, 0 * W[:1]])
for norm in ("MAX", "L1", "L2"):
    ml(f"normalizer_{norm.lower()}", "Normalizer", dict(x=Z), norm=norm)
ml("normalizer_i64", "Normalizer", dict(x=(4 * W).astype(np.int64)), norm="L2")
ml("scaler", "Scaler", dict(x=W), offset=f(4).tolist(), scale=f(4).tolist())
ml("scaler_one", "Scaler", dict(x=(4 * W).astype(np.int64)), offset=[0.5], scale=[2.0])
ml("imputer", "Imputer", dict(x=np.where(W > 1, np.nan, W).astype(np.float32)), imputed_value_floats=f(4).tolist(), replaced_value_float=float("nan"))
ml("imputer_number", "Imputer", dict(x=V), imputed_value_floats=[7.5], replaced_value_float=-1.0)
ml("imputer_i64", "Imputer", dict(x=V.astype(np.int64)), imputed_value_int64s=[7, 8, 9], replaced_value_int64=1)
ml("binarizer", "Binarizer", dict(x=W), threshold=0.25)
ml("feature_vectorizer", "FeatureVectorizer", dict(x=W, z=f(6, 2)), inputdimensions=[4, 2])
ml("feature_vectorizer_sizes", "FeatureVectorizer", dict(x=W, z=f(6, 2)), inputdimensions=[3, 4])
ml("extractor", "ArrayFeatureExtractor", dict(x=W, i=i64(2, 0)))
ml("extractor_row", "ArrayFeatureExtractor", dict(x=f(5), i=i64(2, 0, 4)))
ml("extractor_3d", "ArrayFeatureExtractor", dict(x=f(2, 3, 4), i=np.array([[3, 0]], np.int64)))
ml("label_encoder", "LabelEncoder", dict(x=V.astype(np.int64)), keys_int64s=[1, 2, -1], values_floats=[0.5, 1.5, 2.5], default_float=-3.0)
ml("label_encoder_f32", "LabelEncoder", dict(x=M), ml=4, keys_floats=[1.0, float("nan")], values_int64s=[5, 6])
ml("one_hot_encoder", "OneHotEncoder", dict(x=V.astype(np.int64)), cats_int64s=[-1, 2, 1])

# --- scikit-learn
from skl2onnx import to_onnx
from sklearn import (cluster, compose, decomposition, discriminant_analysis, dummy, ensemble as trees_of, gaussian_process, impute, linear_model, mixture, multiclass, naive_bayes, neighbors, neural_network, pipeline, preprocessing, svm, tree)
D = rng.standard_normal((60, 4)).astype(np.float32)
R = (D @ rng.standard_normal(4) + 0.3 * rng.standard_normal(60)).astype(np.float32)
R2 = np.stack([R, -R + D[:, 0]], 1)
TWO, THREE, ODD = (R > 0).astype(np.int64), np.digitize(R, [-1, 1]).astype(np.int64), np.where(R > 0, 7, 5).astype(np.int64)
HOLES = D.copy(); HOLES[rng.random(D.shape) < 0.2] = np.nan

def sklearn(name, estimator, y=None, x=D, zipmap=True, **more):
    fit = estimator.fit(x, y) if y is not None else estimator.fit(x)
    options = {} if zipmap else {"options": {"zipmap": False}}
    model = to_onnx(fit, x[:1], target_opset={"": 17, ML: 3}, **options)
    record(f"sklearn_{name}", model, {"X": x[:8]}, **more)

kw = dict(random_state=0)
sklearn("decision_tree_regressor", tree.DecisionTreeRegressor(max_depth=4, **kw), R)
sklearn("decision_tree_two_targets", tree.DecisionTreeRegressor(max_depth=3, **kw), R2)
sklearn("decision_tree_deep", tree.DecisionTreeClassifier(**kw), THREE)
for label, y in (("two", TWO), ("odd", ODD), ("three", THREE)):
    sklearn(f"random_forest_{label}", trees_of.RandomForestClassifier(4, max_depth=3, **kw), y)
    sklearn(f"gradient_boosting_{label}", trees_of.GradientBoostingClassifier(n_estimators=4, max_depth=2, **kw), y)
    sklearn(f"logistic_regression_{label}", linear_model.LogisticRegression(), y)
    sklearn(f"linear_svc_{label}", svm.LinearSVC(), y)
    sklearn(f"sgd_{label}", linear_model.SGDClassifier(loss="log_loss", **kw), y)
    sklearn(f"svc_{label}", svm.SVC(), y, zipmap=False)
    sklearn(f"svc_proba_{label}", svm.SVC(probability=True, **kw), y, atol=1e-4)
    sklearn(f"ada_boost_{label}", trees_of.AdaBoostClassifier(tree.DecisionTreeClassifier(max_depth=1), n_estimators=3, **kw), y)
    sklearn(f"mlp_{label}", neural_network.MLPClassifier(hidden_layer_sizes=(5,), max_iter=30, **kw), y)
    sklearn(f"naive_bayes_{label}", naive_bayes.GaussianNB(), y, atol=1e-4)
    sklearn(f"neighbors_{label}", neighbors.KNeighborsClassifier(3), y)
    sklearn(f"one_vs_rest_{label}", multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), y)
    sklearn(f"voting_{label}", trees_of.VotingClassifier([("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=2, **kw))], voting="soft", flatten_transform=False), y)
    sklearn(f"bagging_{label}", trees_of.BaggingClassifier(tree.DecisionTreeClassifier(max_depth=2, **kw), 3, **kw), y)
    sklearn(f"discriminant_{label}", discriminant_analysis.LinearDiscriminantAnalysis(), y)
sklearn("random_forest_regressor", trees_of.RandomForestRegressor(4, max_depth=3, **kw), R)
sklearn("extra_trees_two_targets", trees_of.ExtraTreesRegressor(3, max_depth=3, **kw), R2)
sklearn("gradient_boosting_regressor", trees_of.GradientBoostingRegressor(n_estimators=4, max_depth=2, **kw), R)
sklearn("isolation_forest", trees_of.IsolationForest(n_estimators=3, max_samples=16, **kw), atol=1e-4)
for name, model in (("linear_regression", linear_model.LinearRegression()), ("ridge", linear_model.Ridge()), ("lasso", linear_model.Lasso(0.1)), ("svr", svm.SVR()), ("nu_svr_poly", svm.NuSVR(kernel="poly")), ("huber", linear_model.HuberRegressor()),
                    ("neighbors_regressor", neighbors.KNeighborsRegressor(3)), ("mlp_regressor", neural_network.MLPRegressor(hidden_layer_sizes=(5,), max_iter=30, **kw)), ("poisson", linear_model.TweedieRegressor())):
    sklearn(name, model, R, atol=1e-4)
sklearn("linear_regression_two_targets", linear_model.LinearRegression(), R2)
sklearn("one_class_svm", svm.OneClassSVM(nu=0.3))
for name, model in (("standard_scaler", preprocessing.StandardScaler()), ("robust_scaler", preprocessing.RobustScaler()), ("min_max_scaler", preprocessing.MinMaxScaler()), ("normalizer", preprocessing.Normalizer("l2")), ("binarizer", preprocessing.Binarizer(threshold=0.1)),
                    ("polynomial", preprocessing.PolynomialFeatures(2)), ("pca", decomposition.PCA(2)), ("k_means", cluster.KMeans(3, n_init=1, **kw)), ("bins", preprocessing.KBinsDiscretizer(3, encode="ordinal"))):
    sklearn(name, model, atol=1e-4)
sklearn("imputer", impute.SimpleImputer(), x=HOLES)
sklearn("one_hot_encoder", preprocessing.OneHotEncoder(sparse_output=False), x=rng.integers(0, 4, (60, 2)).astype(np.int64))
sklearn("pipeline", pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler(), trees_of.RandomForestClassifier(3, max_depth=3, **kw)), THREE, x=HOLES)
sklearn("columns", pipeline.make_pipeline(compose.ColumnTransformer([("a", preprocessing.StandardScaler(), [0, 1]), ("b", preprocessing.MinMaxScaler(), [3])]), linear_model.LogisticRegression()), TWO)

# --- decoders whose mask is as long as the past and the new positions together: in OPT positions are counted from it, in
# Bloom it gives the distances that attention is weighed by
import torch
from transformers import BloomConfig, BloomForCausalLM, OPTConfig, OPTForCausalLM
from transformers.cache_utils import DynamicCache

class Decoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, key, value):
        cache = DynamicCache()
        cache.update(key, value, 0)
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return out.logits, out.past_key_values.layers[0].keys, out.past_key_values.layers[0].values

def decoder(name, model):
    ids, mask, past = torch.randint(0, 20, (2, 3)), torch.ones(2, 8, dtype=torch.long), torch.randn(2, 2, 5, 4)
    mask[1, :2] = 0
    names = ["input_ids", "attention_mask", "past_key_values.0.key", "past_key_values.0.value"]
    feeds = dict(zip(names, (ids, mask, past, torch.randn_like(past))))
    axes = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "total"}, names[2]: {0: "batch", 2: "past"}, names[3]: {0: "batch", 2: "past"}}
    file = io.BytesIO()
    with torch.no_grad():
        torch.onnx.export(Decoder(model.eval()), tuple(feeds.values()), file, input_names=names, output_names=["logits", "present.0.key", "present.0.value"], dynamic_axes=axes, opset_version=17, dynamo=False)
    record(name, onnx.load_from_string(file.getvalue()), {k: v.numpy() for k, v in feeds.items()})

torch.manual_seed(0)
decoder("decoder_bloom", BloomForCausalLM(BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=20, attn_implementation="eager")))
for attention in ("eager", "sdpa"):
    decoder(f"decoder_opt_{attention}", OPTForCausalLM(OPTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, vocab_size=20, max_position_embeddings=16, word_embed_proj_dim=8, attn_implementation=attention)))

with tarfile.open(sys.argv[1], "w") as tar:
    index = "".join(f"{name}\t{op}\t{opset}\t{rtol}\t{atol}\n" for name, op, opset, rtol, atol, _ in cases)
    files = {"node/index.tsv": index.encode()}
    for *_, more in cases:
        files.update(more)
    for name, data in files.items():
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
print(len(cases), "cases")

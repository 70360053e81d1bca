"""Writes the folders of models beside it: tiny, with weights from a seed, each with what transformers computes of them.

    pip install torch transformers sentence-transformers tokenizers onnx pillow
    python3 fixtures.py
"""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

HERE = Path(__file__).parent
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = """the cat dog sat on mat a film was good bad not very and i like we see it rain sun day fine house in is of to
from anna lives paris works at who what where they there here with red blue green big small ##s ##ing ##ed . , ! ? '""".split()
# Position embeddings of the two sizes of models: a text has no more tokens.
POSITIONS = 24


def vocabulary():
    words = SPECIAL + list(LETTERS) + ["##" + letter for letter in LETTERS] + WORDS
    return {word: i for i, word in enumerate(dict.fromkeys(words))}


def tokenizer():
    vocab = vocabulary()
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def config(width=32, layers=2, **more):
    return BertConfig(
        vocab_size=len(vocabulary()),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=width,
        max_position_embeddings=POSITIONS,
        # Weights of the usual deviation make scores that are all alike.
        initializer_range=0.4,
        attn_implementation="eager",
        **more,
    )


def seeded(make, seed):
    torch.manual_seed(seed)
    return make().eval()


def folder(name):
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def write(path, value):
    rows = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def export(model, path, inputs, outputs, axes):
    class Outputs(torch.nn.Module):
        """The outputs of these names, as optimum's exports have them."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *values):
            given = self.model(**dict(zip(inputs, values)))
            return tuple(given[name] for name in outputs)

    torch.onnx.export(
        Outputs().eval(),
        tuple(inputs.values()),
        path,
        input_names=list(inputs),
        output_names=outputs,
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    exported = onnx.load(path)
    for node in exported.graph.node:
        node.doc_string = ""
    onnx.save(exported, path)


def export_text(model, path, outputs, tokens):
    ids = tokens(["the cat sat", "a"], padding=True, return_tensors="pt")
    rows = {0: "batch", 1: "sequence"}
    axes = {name: rows for name in ids}
    axes.update({name: {0: "batch"} if model_is_of_texts(model) else rows for name in outputs})
    export(model, path / "model.onnx", dict(ids), outputs, axes)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(path)
    tokens.save_pretrained(path)
    for name in ["special_tokens_map.json", "generation_config.json"]:
        (path / name).unlink(missing_ok=True)


def model_is_of_texts(model):
    return isinstance(model, BertForSequenceClassification)


def logits(model, tokens, *texts):
    with torch.no_grad():
        return model(**tokens(*texts, padding=True, return_tensors="pt")).logits


def classifier(tokens):
    path = folder("classifier")
    labels = {0: "negative", 1: "neutral", 2: "positive"}
    made = seeded(lambda: BertForSequenceClassification(config(id2label=labels)), 1)
    export_text(made, path, ["logits"], tokens)
    texts = ["The film was good!", "a very, very bad film and rain"]
    scores = logits(made, tokens, texts)
    write(path / "expected.json", {
        "texts": texts,
        "labels": list(labels.values()),
        "softmax": scores.softmax(-1).tolist(),
        "sigmoid": scores.sigmoid().tolist(),
    })


def reranker(tokens):
    path = folder("reranker")
    made = seeded(lambda: BertForSequenceClassification(config(16, 1, num_labels=1)), 2)
    export_text(made, path, ["logits"], tokens)
    pairs = [["where is the cat", "the cat sat on the mat."], ["where is the cat", "anna lives in paris"]]
    scores = logits(made, tokens, [a for a, _ in pairs], [b for _, b in pairs])
    write(path / "expected.json", {"pairs": pairs, "scores": scores[:, 0].tolist(), "sigmoid": scores[:, 0].sigmoid().tolist()})


def token_classifier(tokens):
    path = folder("token-classifier")
    labels = {0: "O", 1: "PERSON", 2: "PLACE"}
    made = seeded(lambda: BertForTokenClassification(config(16, 1, id2label=labels)), 7)
    export_text(made, path, ["logits"], tokens)
    text = "Anna lives in Parisx."
    scores = logits(made, tokens, [text])[0].softmax(-1)
    words = tokens.convert_ids_to_tokens(tokens(text)["input_ids"])
    # Special tokens are left out.
    rows = [(word, labels[int(row.argmax())], float(row.max())) for word, row in zip(words, scores)][1:-1]
    write(path / "expected.json", {"text": text, "tokens": rows})


def masked_lm(tokens):
    path = folder("masked-lm")
    made = seeded(lambda: BertForMaskedLM(config()), 4)
    export_text(made, path, ["logits"], tokens)
    texts = ["the [MASK] sat on the [MASK].", "a [MASK]"]
    ids = tokens(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = made(**ids).logits.softmax(-1)
    rows = []
    for row, probabilities in zip(ids["input_ids"], scores):
        places = (row == tokens.mask_token_id).nonzero()[:, 0].tolist()
        best = [probabilities[place].topk(5) for place in places]
        rows.append([
            {"position": place, "tokens": tokens.convert_ids_to_tokens(top.indices.tolist()), "scores": top.values.tolist()}
            for place, top in zip(places, best)
        ])
    write(path / "expected.json", {"texts": texts, "masks": rows})


def encoder(tokens):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    path = folder("encoder")
    made = seeded(lambda: BertModel(config(), add_pooling_layer=False), 5)
    export_text(made, path, ["last_hidden_state"], tokens)
    # sentence-transformers writes its files beside weights, which are of no use here.
    with_weights = path / "weights"
    made.save_pretrained(with_weights)
    tokens.save_pretrained(with_weights)
    transformer = Transformer(str(with_weights))
    whole = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="mean"), Normalize()], device="cpu")
    texts = ["The cat sat on the mat.", "a dog", "we like fine, sunny days"]
    embeddings = whole.encode(texts)
    saved = path / "saved"
    whole.save(str(saved))
    for file in ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"]:
        (path / file).parent.mkdir(exist_ok=True)
        shutil.copy(saved / file, path / file)
    shutil.rmtree(saved)
    shutil.rmtree(with_weights)
    with torch.no_grad():
        ids = tokens(texts, padding=True, return_tensors="pt")
        hidden = made(**ids).last_hidden_state
    mask = ids["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    write(path / "expected.json", {
        "texts": texts,
        "embeddings": embeddings.tolist(),
        "cosines": (embeddings @ embeddings.T).tolist(),
        "means": mean.tolist(),
        "first": hidden[:, 0].tolist(),
    })


def picture():
    """48 by 36 pixels with slopes and edges."""
    columns, rows = np.meshgrid(np.arange(48), np.arange(36))
    slopes = np.stack([columns * 5, rows * 7, (columns * rows) % 256], -1).astype(np.uint8)
    image = Image.fromarray(slopes)
    draw = ImageDraw.Draw(image)
    draw.ellipse((8, 6, 30, 28), fill=(230, 180, 20))
    draw.line((0, 35, 47, 2), fill=(10, 20, 200), width=2)
    return image


def pixels(processor, image):
    return processor(image, return_tensors="np")["pixel_values"]


def image_classifier():
    path = folder("image-classifier")
    labels = {i: name for i, name in enumerate(["cat", "dog", "house", "tree", "car", "sun", "rain"])}
    shape = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=16, image_size=16, patch_size=4,
        initializer_range=0.4, id2label=labels,
    )
    made = seeded(lambda: ViTForImageClassification(shape), 6)
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    image = picture()
    image.save(path / "cat.png")
    image.save(path / "cat.webp", lossless=True)
    image.save(path / "cat.jpg", quality=95, subsampling=0)
    # As a camera that was held upright saves it.
    turned = Image.Exif()
    turned[0x0112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(path / "turned.jpg", quality=95, subsampling=0, exif=turned)
    export(made, path / "model.onnx", {"pixel_values": torch.zeros(1, 3, 16, 16)}, ["logits"], {"pixel_values": {0: "batch"}, "logits": {0: "batch"}})
    made.config.architectures = [type(made).__name__]
    made.config.save_pretrained(path)
    processor.save_pretrained(path)
    given = pixels(processor, image)
    with torch.no_grad():
        scores = made(pixel_values=torch.from_numpy(given)).logits.softmax(-1)[0]
    top = scores.topk(5)
    write(path / "expected.json", {"labels": [labels[i] for i in top.indices.tolist()], "scores": top.values.tolist()})


def pixel_values():
    """What image processors make of the picture: a folder a processor, with its file and its pixels."""
    path = folder("pixel-values")
    image = picture()
    imagenet = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    rows = {
        "stretched": ViTImageProcessorPil(size={"height": 16, "width": 12}),
        "bicubic": ViTImageProcessorPil(size={"height": 20, "width": 20}, resample=3, **imagenet),
        "lanczos": ViTImageProcessorPil(size={"height": 11, "width": 14}, resample=1),
        "nearest": ViTImageProcessorPil(size={"height": 16, "width": 16}, resample=0),
        "enlarged": ViTImageProcessorPil(size={"height": 50, "width": 60}, do_normalize=False),
        "cropped": ViTImageProcessorPil(size={"shortest_edge": 20}, do_center_crop=True, crop_size={"height": 16, "width": 16}, **imagenet),
        "padded": ViTImageProcessorPil(size={"shortest_edge": 13}, do_center_crop=True, crop_size={"height": 18, "width": 16}),
        "grey": ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=0.5, image_std=0.25),
        "convnext": ConvNextImageProcessorPil(size={"shortest_edge": 14}, crop_pct=0.875, **imagenet),
        "convnext-384": ConvNextImageProcessorPil(size={"shortest_edge": 384}, **imagenet),
    }
    for name, processor in rows.items():
        (path / name).mkdir()
        processor.save_pretrained(path / name)
        given = pixels(processor, image.convert("L") if name == "grey" else image)
        # Of large images the last pixels are enough.
        given = given[:, :, -20:, -20:]
        np.save(path / name / "pixels.npy", np.ascontiguousarray(given.astype(np.float32)))


if __name__ == "__main__":
    print("transformers", transformers.__version__, "torch", torch.__version__)
    tokens = tokenizer()
    print(len(vocabulary()), "words")
    classifier(tokens)
    reranker(tokens)
    token_classifier(tokens)
    masked_lm(tokens)
    encoder(tokens)
    image_classifier()
    pixel_values()

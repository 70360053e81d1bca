"""What real clients of an inference server do: a row a case, run by `run.py` where the clients are installed.

    python cases.py HTTP-ADDRESS GRPC-ADDRESS PACKAGE

One package a process: two of them register the same protobuf names. Every case compares its answer with `Truth`, which asks the same by plain JSON and urllib alone. A case that returns passed; what
it raises is why it failed.
"""

import asyncio
import importlib
import importlib.metadata
import json
import sys
import urllib.request

import numpy as np

MODEL = "bert-base-tiny"
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
OUTPUT = "last_hidden_state"
TEXTS = ["A text.", "Another, somewhat longer one."]
ROWS, LENGTH = 2, 5


class Truth:
    """The server by urllib alone."""

    def __init__(self, http, grpc):
        self.http, self.grpc = http, grpc
        ids = np.arange(2, 2 + ROWS * LENGTH, dtype=np.int64).reshape(ROWS, LENGTH)
        self.feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        inputs = [
            {"name": name, "shape": [ROWS, LENGTH], "datatype": "INT64", "data": values.ravel().tolist()}
            for name, values in self.feeds.items()
        ]
        answer = self.post(f"/v2/models/{MODEL}/infer", {"inputs": inputs, "outputs": [{"name": OUTPUT}]})
        output = answer["outputs"][0]
        self.hidden = np.array(output["data"], np.float32).reshape(output["shape"])
        embeddings = self.post("/v1/embeddings", {"model": MODEL, "input": TEXTS})
        self.vectors = np.array([row["embedding"] for row in embeddings["data"]], np.float32)

    def post(self, path, body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.http}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def same(self, hidden):
        # Rows may have run beside others, where sums are rounded in another order.
        np.testing.assert_allclose(np.asarray(hidden).reshape(self.hidden.shape), self.hidden, rtol=0, atol=1e-5)

    def same_vectors(self, vectors):
        np.testing.assert_allclose(np.asarray(vectors, np.float32), self.vectors, rtol=0, atol=1e-5)


def refused(call, *words):
    """The error of a call, which must name `words`."""
    try:
        call()
    except Exception as error:  # Each client has an error class of its own.
        text = str(error)
        assert all(word in text for word in words), f"{words} are not all in {text!r}"
        return
    raise AssertionError(f"nothing was refused; {words} were expected")


# tritonclient: HTTP and gRPC have the same calls.


def triton_inputs(api, truth, **options):
    inputs = []
    for name, values in truth.feeds.items():
        tensor = api.InferInput(name, list(values.shape), "INT64")
        tensor.set_data_from_numpy(values, **options)
        inputs.append(tensor)
    return inputs


def triton_http(truth):
    import tritonclient.http as api

    return api, api.InferenceServerClient(truth.http)


def triton_grpc(truth):
    import tritonclient.grpc as api

    return api, api.InferenceServerClient(truth.grpc)


def triton_health(connect):
    def case(truth):
        _, client = connect(truth)
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL)
        assert not client.is_model_ready("nothing")

    return case


def triton_metadata(connect):
    def case(truth):
        api, client = connect(truth)
        options = {"as_json": True} if api.__name__.endswith("grpc") else {}
        assert client.get_server_metadata(**options)["name"]
        metadata = client.get_model_metadata(MODEL, **options)
        assert [port["name"] for port in metadata["inputs"]] == INPUTS, metadata
        config = client.get_model_config(MODEL, **options)
        config = config.get("config", config)
        assert int(config["max_batch_size"]) > 1, config

    return case


def triton_statistics(connect):
    def case(truth):
        api, client = connect(truth)
        options = {"as_json": True} if api.__name__.endswith("grpc") else {}

        def count():
            row = client.get_inference_statistics(MODEL, **options)["model_stats"][0]
            return int(row["inference_count"]), int(row["inference_stats"]["success"]["count"])

        before = count()
        client.infer(MODEL, triton_inputs(api, truth))
        after = count()
        assert after == (before[0] + ROWS, before[1] + 1), (before, after)
        index = client.get_model_repository_index(**options)
        index = index["models"] if isinstance(index, dict) else index
        assert [(row["name"], row["state"]) for row in index] == [(MODEL, "READY")], index

    return case


def triton_infer(connect, inputs={}, outputs=None, **options):
    def case(truth):
        api, client = connect(truth)
        asked = None if outputs is None else [api.InferRequestedOutput(OUTPUT, **outputs)]
        answer = client.infer(MODEL, triton_inputs(api, truth, **inputs), outputs=asked, request_id="7", **options)
        truth.same(answer.as_numpy(OUTPUT))
        answer = answer.get_response()
        identity = answer["id"] if isinstance(answer, dict) else answer.id
        assert identity == "7", identity

    return case


def triton_refusals(connect):
    def case(truth):
        api, client = connect(truth)
        infer = lambda inputs, model=MODEL, **options: lambda: client.infer(model, inputs, **options)
        good = lambda: triton_inputs(api, truth)
        refused(infer(good(), "nothing"), "nothing")
        refused(infer(good(), model_version="9"), "9")
        refused(infer(good()[:2]), "token_type_ids")
        refused(infer(good(), outputs=[api.InferRequestedOutput("nothing")]), "nothing")
        refused(infer(good(), outputs=[api.InferRequestedOutput(OUTPUT, class_count=2)]), "classification")
        wrong = api.InferInput("input_ids", [ROWS, LENGTH], "FP32")
        wrong.set_data_from_numpy(np.zeros((ROWS, LENGTH), np.float32))
        refused(infer([wrong] + good()[1:]), "input_ids", "FP32")
        wrong = api.InferInput("input_ids", [LENGTH], "INT64")
        wrong.set_data_from_numpy(np.zeros(LENGTH, np.int64))
        refused(infer([wrong] + good()[1:]), "input_ids")
        refused(lambda: client.load_model(MODEL), "--control")

    return case


def triton_concurrent(truth):
    import tritonclient.http as api

    client = api.InferenceServerClient(truth.http, concurrency=8)
    running = [client.async_infer(MODEL, triton_inputs(api, truth)) for _ in range(64)]
    for request in running:
        truth.same(request.get_result().as_numpy(OUTPUT))


def triton_aio(module):
    def case(truth):
        api = importlib.import_module(f"tritonclient.{module}.aio")
        address = truth.http if module == "http" else truth.grpc

        async def many():
            async with api.InferenceServerClient(address) as client:
                calls = (client.infer(MODEL, triton_inputs(api, truth)) for _ in range(32))
                return await asyncio.gather(*calls)

        for answer in asyncio.run(many()):
            truth.same(answer.as_numpy(OUTPUT))

    return case


def triton_stream(truth):
    import queue

    api, client = triton_grpc(truth)
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(16):
        client.async_stream_infer(MODEL, triton_inputs(api, truth), request_id=str(number))
    client.async_stream_infer(MODEL, triton_inputs(api, truth)[:2], request_id="wrong")
    client.async_stream_infer(MODEL, triton_inputs(api, truth), request_id="last")
    seen, errors = set(), []
    for _ in range(18):
        result, error = answers.get(timeout=30)
        if error is not None:
            errors.append(str(error))
            continue
        truth.same(result.as_numpy(OUTPUT))
        seen.add(result.get_response().id)
    client.stop_stream()
    assert seen == {str(number) for number in range(16)} | {"last"}, seen
    assert len(errors) == 1 and "token_type_ids" in errors[0], errors


# kserve


def kserve_request(truth, binary=False):
    from kserve import InferInput, InferRequest

    inputs = []
    for name, values in truth.feeds.items():
        tensor = InferInput(name, list(values.shape), "INT64")
        tensor.set_data_from_numpy(values, binary_data=binary)
        inputs.append(tensor)
    return InferRequest(model_name=MODEL, infer_inputs=inputs)


def kserve_http(binary):
    def case(truth):
        from kserve import InferenceRESTClient
        from kserve.inference_client import RESTConfig

        async def run():
            client, base = InferenceRESTClient(RESTConfig(protocol="v2")), f"http://{truth.http}"
            assert await client.is_server_live(base) and await client.is_server_ready(base)
            assert await client.is_model_ready(base, MODEL)
            answer = await client.infer(base, kserve_request(truth, binary), model_name=MODEL)
            await client.close()
            return answer

        outputs = {output.name: output for output in asyncio.run(run()).outputs}
        truth.same(outputs[OUTPUT].as_numpy())

    return case


def kserve_grpc(truth):
    from kserve import InferenceGRPCClient

    async def run():
        client = InferenceGRPCClient(truth.grpc)
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready(MODEL)
        answer = await client.infer(kserve_request(truth))
        await client.close()
        return answer

    outputs = {output.name: output for output in asyncio.run(run()).outputs}
    truth.same(outputs[OUTPUT].as_numpy())


# Clients of text


def openai_client(truth):
    from openai import OpenAI

    return OpenAI(base_url=f"http://{truth.http}/v1", api_key="none", max_retries=0)


def openai_embeddings(**options):
    def case(truth):
        answer = openai_client(truth).embeddings.create(model=MODEL, input=TEXTS, **options)
        truth.same_vectors([row.embedding for row in answer.data])
        assert answer.usage.prompt_tokens > 0

    return case


def openai_base64(truth):
    import base64

    answer = openai_client(truth).embeddings.create(model=MODEL, input=TEXTS, encoding_format="base64")
    truth.same_vectors([np.frombuffer(base64.b64decode(row.embedding), "<f4") for row in answer.data])


def openai_models(truth):
    assert [model.id for model in openai_client(truth).models.list()] == [MODEL]


def openai_refusals(truth):
    import openai

    client = openai_client(truth)
    for options, kind in [
        ({"model": "nothing", "input": "x"}, openai.NotFoundError),
        ({"model": MODEL, "input": []}, openai.BadRequestError),
        ({"model": MODEL, "input": "x", "dimensions": 1 << 20}, openai.BadRequestError),
    ]:
        try:
            client.embeddings.create(**options)
        except kind:
            continue
        raise AssertionError(f"{options} was not refused")


def hub_embed(truth):
    from huggingface_hub import InferenceClient

    vectors = InferenceClient().feature_extraction(TEXTS[0], model=f"http://{truth.http}/embed")
    np.testing.assert_allclose(np.asarray(vectors).ravel(), truth.vectors[0], rtol=0, atol=1e-5)


TRITON = [("HTTP", triton_http), ("gRPC", triton_grpc)]

# A row a case: the package, what is done, and the function that does it.
CASES = [
    *[("tritonclient", f"{name}: live, ready", triton_health(connect)) for name, connect in TRITON],
    *[("tritonclient", f"{name}: metadata, config", triton_metadata(connect)) for name, connect in TRITON],
    *[("tritonclient", f"{name}: statistics, index", triton_statistics(connect)) for name, connect in TRITON],
    *[("tritonclient", f"{name}: infer", triton_infer(connect)) for name, connect in TRITON],
    *[("tritonclient", f"{name}: wrong requests", triton_refusals(connect)) for name, connect in TRITON],
    ("tritonclient", "HTTP: JSON in and out", triton_infer(triton_http, {"binary_data": False}, {"binary_data": False})),
    ("tritonclient", "HTTP: JSON in, binary out", triton_infer(triton_http, {"binary_data": False}, {"binary_data": True})),
    ("tritonclient", "HTTP: gzip in and out", triton_infer(triton_http, request_compression_algorithm="gzip", response_compression_algorithm="gzip")),
    ("tritonclient", "HTTP: deflate in", triton_infer(triton_http, request_compression_algorithm="deflate")),
    ("tritonclient", "HTTP: 64 at a time", triton_concurrent),
    ("tritonclient", "HTTP: asyncio", triton_aio("http")),
    ("tritonclient", "gRPC: one output, deadline", triton_infer(triton_grpc, outputs={}, client_timeout=30.0)),
    ("tritonclient", "gRPC: gzip", triton_infer(triton_grpc, compression_algorithm="gzip")),
    ("tritonclient", "gRPC: asyncio", triton_aio("grpc")),
    ("tritonclient", "gRPC: a stream", triton_stream),
    ("kserve", "REST: ready, infer by JSON", kserve_http(False)),
    ("kserve", "REST: infer by binary tensors", kserve_http(True)),
    ("kserve", "gRPC: ready, infer", kserve_grpc),
    ("openai", "embeddings, the client's default", openai_embeddings()),
    ("openai", "embeddings as floats", openai_embeddings(encoding_format="float")),
    ("openai", "embeddings as base64", openai_base64),
    ("openai", "models", openai_models),
    ("openai", "wrong requests", openai_refusals),
    ("huggingface_hub", "feature_extraction of /embed", hub_embed),
]


def main():
    http, grpc, asked = sys.argv[1:]
    truth = Truth(http, grpc)
    for package, what, case in CASES:
        if package != asked:
            continue
        version = importlib.metadata.version(package)
        try:
            case(truth)
            result = "ok"
        except Exception as error:
            result = f"FAILED: {type(error).__name__}: {error}"
        print(json.dumps([package, version, what, result]), flush=True)


if __name__ == "__main__":
    main()

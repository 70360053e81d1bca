"""BERT-base in PyTorch with the batches that graphene-serve makes: the peer of `serving load --embed`.

Requests of one text of 16 to 384 tokens; as many wait at a time as the server has connections. A batch is the one that has
waited longest and those of nearest length beside it, within the same caps: 64 rows, 16384 positions, 15 % padding.
Vectors are pooled by mean and copied to the host. Prints a line of JSON for eager execution, and for torch.compile.

    python3 torch_serving.py [--seconds 10] [--waiting 256] [--lengths 16..384]
"""

import argparse
import json
import random
import time

import torch
from transformers import BertConfig, BertModel

ROWS, POSITIONS, PADDING = 64, 16384, 0.15


def window(lengths):
    """The places of a batch: the first one's, and those of nearest length within the caps."""
    order = sorted(range(len(lengths)), key=lambda place: (lengths[place], place))
    first = order.index(0)
    low, high = first, first + 1
    rows, real = 1, lengths[0]

    def fits(more):
        longest = max(lengths[order[high - 1]], more)
        positions = (rows + 1) * longest
        padding = positions - (real + more)
        return rows + 1 <= ROWS and positions <= POSITIONS and padding <= PADDING * positions

    while True:
        shorter = lengths[order[low - 1]] if low > 0 and fits(lengths[order[low - 1]]) else None
        longer = lengths[order[high]] if high < len(order) and fits(lengths[order[high]]) else None
        if shorter is None and longer is None:
            return order[low:high]
        if longer is None or (shorter is not None and lengths[0] - shorter < longer - lengths[0]):
            low -= 1
            real += shorter
        else:
            high += 1
            real += longer
        rows += 1


def serve(model, requests, waiting, seconds):
    """Rows a second, and the rows of a batch."""
    following = iter(requests * 1000)
    queue = [next(following) for _ in range(waiting)]
    rows = batches = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        places = window([len(ids) for ids in queue])
        batch = [queue[place] for place in places]
        longest = max(map(len, batch))
        ids = torch.zeros(len(batch), longest, dtype=torch.long, pin_memory=True)
        mask = torch.zeros(len(batch), longest, dtype=torch.long, pin_memory=True)
        for row, one in enumerate(batch):
            ids[row, : len(one)] = torch.tensor(one)
            mask[row, : len(one)] = 1
        ids, mask = ids.cuda(non_blocking=True), mask.cuda(non_blocking=True)
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        vectors = (hidden * weights).sum(1) / weights.sum(1)
        torch.nn.functional.normalize(vectors.float(), dim=1).cpu()
        for place in sorted(places, reverse=True):
            del queue[place]
        queue += [next(following) for _ in places]
        rows += len(batch)
        batches += 1
    return rows / (time.perf_counter() - began), rows / batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--waiting", type=int, default=256)
    parser.add_argument("--lengths", default="16..384")
    parser.add_argument("--eager-only", action="store_true")
    args = parser.parse_args()
    low, high = map(int, args.lengths.split(".."))
    numbers = random.Random(1)
    requests = [[numbers.randrange(1000) for _ in range(numbers.randint(low, high))] for _ in range(512)]
    torch.manual_seed(0)
    model = BertModel(BertConfig(), add_pooling_layer=False).half().cuda().eval()
    kinds = [("eager", model)]
    if not args.eager_only:
        kinds.append(("torch.compile", torch.compile(model, dynamic=True)))
    with torch.inference_mode():
        for name, one in kinds:
            serve(one, requests, args.waiting, args.seconds / 3)
            rate, rows = serve(one, requests, args.waiting, args.seconds)
            print(json.dumps({"case": f"PyTorch {torch.__version__}, {name}", "rows_s": round(rate, 1),
                              "rows_a_batch": round(rows, 2)}), flush=True)


main()

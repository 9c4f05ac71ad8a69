"""Rollouts from vLLM servers on other GPUs or nodes, reached over HTTP.

`trainer serve` starts such a server. It is asked in tokens, not in text, and takes its weights through vLLM's
weight-transfer routes (`trainer.engines.vllm_receiver` is the receiving side).
"""

import base64
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import requests
import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor, nn

from trainer.config import VllmConfig
from trainer.engines import Sample, SamplingParams
from trainer.engines.vllm import check_request
from trainer.engines.vllm_sync import check_weights_arrived, named_weights
from trainer.errors import ConfigError, EngineError, MissingError

CHUNK_BYTES = 64 << 20  # of weights in one request
CONCURRENT_REQUESTS = 256
TIMEOUTS_S = (10.0, 3600.0)  # to connect, and for an answer: a batch of long completions may queue that long
POLL_S = 1.0
ABORTS = 5  # a request may still be on its way when the first one comes
INCOMPLETE = "incomplete"  # weights of no run: those of an update that has not ended
START = "start one with `trainer serve SPEC`, and name it in rollout.vllm.server_base_urls"


class VllmServerEngine:
    """Engines that belong to nobody's process; rank r samples from the server ``r % number of servers``.

    A server holds the weights of one run at a time. Each synchronisation gives them a name of their own, and the
    server says with every completion under which name it sampled: a completion of other weights, those of
    another run or of a server that was restarted, is an error and never trained on.

    Args:
        settings: addresses and timeouts.
        max_model_len: context that a request may need [tokens].
        dtype: compute dtype of policy and servers, ``float32`` or ``bfloat16``.

    Raises:
        MissingError: a server does not answer in time.
        EngineError: a server was started in another way than `trainer serve` does.
        ConfigError: a server's context is too short.
    """

    def __init__(self, settings: VllmConfig, max_model_len: int, dtype: str) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self._pushes = rank == 0
        self._servers = [VllmServer(url) for url in settings.server_base_urls]
        self._own = self._servers[rank % len(self._servers)]
        self.dtype = dtype
        self.max_model_len = max_model_len
        name = [uuid.uuid4().hex]
        if dist.is_initialized():
            dist.broadcast_object_list(name)
        self._run = name[0]
        self._synchronisations = 0
        self._checked = False
        for server in self._servers if self._pushes else [self._own]:
            server.wait(settings.server_timeout_s)
            server.check(max_model_len)

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Push the policy's weights to all servers; every rank at the same time.

        Raises:
            EngineError: a server refused them, or disagrees with the policy about a short text afterwards.
        """
        self._synchronisations += 1
        try:
            self._push(policy_model)
        except BaseException:
            for server in self._servers if self._pushes else ():
                server.abandon_update()
            raise
        if dist.is_initialized():
            dist.barrier()  # no rank samples before the servers have the weights
        if not self._checked:
            check_weights_arrived(self._own.prompt_logprobs, policy_model, self.dtype)
            self._checked = True

    @torch.no_grad()
    def _push(self, policy_model: nn.Module) -> None:
        if self._pushes:
            for server in self._servers:
                server.begin_update()
        for weights in _chunks(policy_model, getattr(torch, self.dtype)):  # a collective under ZeRO-3
            if self._pushes:
                payload = base64.b64encode(save(weights)).decode()
                for server in self._servers:
                    server.update(payload)
        if self._pushes:
            for server in self._servers:
                server.end_update(self._name())

    def _name(self) -> str:
        return f"{self._run}-{self._synchronisations}"

    def sleep(self) -> None:
        """Nothing to do: a server's memory is not the trainer's."""

    def wake(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: the servers go on."""

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], params: SamplingParams
    ) -> list[list[Sample]]:
        """Sample ``len(seeds[p])`` completions of each prompt, in the order of ``prompts`` and ``seeds``.

        Raises:
            ConfigError: a request is longer than the servers' context.
            EngineError: a request failed, or was answered with other weights than the last synchronised.
        """
        assert self._checked, "the servers have no weights: synchronise first"
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but {len(seeds)} lists of seeds: give one per prompt")
        for place, prompt in enumerate(prompts):
            check_request(place, prompt, params.max_new_tokens, self.max_model_len)
        requested = [(prompt, seed) for prompt, row in zip(prompts, seeds, strict=True) for seed in row]
        name, call = self._name(), uuid.uuid4().hex
        request_ids = [f"{call}-{place}" for place in range(len(requested))]
        pool = ThreadPoolExecutor(CONCURRENT_REQUESTS, thread_name_prefix="rollout")

        asked = [
            pool.submit(self._own.complete, prompt, seed, params, name, request_id)
            for (prompt, seed), request_id in zip(requested, request_ids, strict=True)
        ]
        try:
            wait(asked, return_when=FIRST_EXCEPTION)
            samples = iter([answer.result() for answer in asked])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for _ in range(ABORTS):
                self._own.abort(request_ids)  # else the process could not end before the server had answered
                if not wait(asked, timeout=POLL_S).not_done:
                    break
            raise
        pool.shutdown()
        return [[next(samples) for _ in row] for row in seeds]


class VllmServer:
    """One server's routes."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def wait(self, timeout_s: float) -> None:
        """Until the server is up.

        Raises:
            MissingError: it is not after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if requests.get(f"{self.url}/health", timeout=10).ok:
                    return
            except requests.RequestException:
                pass
            if time.monotonic() > deadline:
                raise MissingError(
                    f"no vLLM server answers at {self.url} ({timeout_s:g} s)",
                    "rollout.vllm.server_base_urls",
                    START,
                )
            time.sleep(POLL_S)

    def check(self, max_model_len: int) -> None:
        """Whether the server has the routes and the context that training needs.

        Raises:
            EngineError: it lacks the routes that take weights.
            ConfigError: its context is too short.
        """
        if self._call("GET", "weight_info", allowed=(404,)).status_code == 404:
            raise EngineError(
                f"the vLLM server at {self.url} takes no weights", "rollout.vllm.server_base_urls", START
            )
        allowed = self._call("GET", "v1/models").json()["data"][0]["max_model_len"]
        if allowed < max_model_len:
            raise ConfigError(
                f"the vLLM server at {self.url} has a context of {allowed} tokens, this run needs {max_model_len}",
                "data.max_prompt_tokens, rollout.max_new_tokens",
                "lower them, or restart `trainer serve` with this run's configuration",
            )

    def begin_update(self) -> None:
        """Stop sampling and make ready for weights; until all have come, theirs is the name of no run."""
        self._call("POST", "pause", params={"mode": "abort"})
        self._call("POST", "update_weight_version", json={"new_version": INCOMPLETE})
        self._call("POST", "init_weight_transfer_engine", json={"init_info": {}})
        if self._call("POST", "start_weight_update", allowed=(500,)).status_code == 500:
            # A trainer that died amid an update left it open.
            self._call("POST", "finish_weight_update", json={"weight_version": INCOMPLETE})
            self._call("POST", "start_weight_update")

    def abandon_update(self) -> None:
        """Leave the server to other runs after an update that failed; its weights stay nobody's."""
        with suppress(EngineError):  # whatever made the update fail is the error to tell of
            self._call("POST", "finish_weight_update", (500,), json={"weight_version": INCOMPLETE})
            self._call("POST", "resume")

    def update(self, safetensors: str) -> None:
        """Push some weights: a safetensors file in base64."""
        self._call("POST", "update_weights", json={"update_info": {"safetensors": safetensors}})

    def end_update(self, name: str) -> None:
        """Sample again, with the new weights under this name."""
        self._call("POST", "finish_weight_update", json={"weight_version": name})
        self._call("POST", "resume")

    def prompt_logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """Log-probabilities of the tokens after the first, [n - 1]."""
        options = {
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
            "detokenize": False,
            "ignore_eos": True,
        }
        found = self._generate(token_ids, options)["prompt_logprobs"]
        pairs = zip(token_ids[1:], found[1:], strict=True)
        return torch.tensor([entry[str(token_id)]["logprob"] for token_id, entry in pairs])

    def abort(self, request_ids: Sequence[str]) -> None:
        """End the requests of these names that are under way."""
        with suppress(EngineError):  # whatever made the caller give up is the error to tell of
            named = [f"generate-tokens-{request_id}" for request_id in request_ids]  # as the route calls them
            self._call("POST", "inference/v1/abort_requests", json={"request_ids": named})

    def complete(
        self, prompt: Sequence[int], seed: int, params: SamplingParams, weights: str, request_id: str
    ) -> Sample:
        """One completion by the weights of this name.

        Raises:
            EngineError: the request failed, or other weights answered.
        """
        options = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "max_tokens": params.max_new_tokens,
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": True,  # the caller's stop tokens are the only ones
            "seed": seed,
            "logprobs": 0,  # of the sampled token
            "detokenize": False,
        }
        [choice] = self._generate(prompt, options, request_id)["choices"]
        others = {part["version"] for part in choice["weight_versions"] or ()} - {weights}
        if choice["finish_reason"] == "abort":  # only a run that brings its weights does that to others
            others = {"those of a run that is just bringing them"}
        if others:
            raise EngineError(
                f"the vLLM server at {self.url} samples with weights that are not this run's ({others.pop()})",
                "rollout.vllm.server_base_urls",
                "give every run servers of its own; if the server was restarted, resume the run",
            )
        if choice["finish_reason"] not in ("stop", "length"):
            raise EngineError(
                f"the vLLM server at {self.url} did not finish a request: {choice['finish_reason']}",
                "rollout.vllm.server_base_urls",
                "see the server's log",
            )
        logprobs = tuple(entry["logprob"] for entry in choice["logprobs"]["content"])
        return Sample(tuple(choice["token_ids"]), logprobs, choice["finish_reason"])

    def _generate(self, token_ids: Sequence[int], options: dict[str, Any], request_id: str = "") -> Any:
        body = {"token_ids": list(token_ids), "sampling_params": options}
        if request_id:
            body["request_id"] = request_id
        return self._call("POST", "inference/v1/generate", json=body).json()

    def _call(self, method: str, route: str, allowed: Sequence[int] = (), **options: Any) -> requests.Response:
        try:
            response = requests.request(method, f"{self.url}/{route}", timeout=TIMEOUTS_S, **options)
        except requests.RequestException as error:
            raise EngineError(
                f"the vLLM server at {self.url} is gone ({type(error).__name__} at /{route})",
                "rollout.vllm.server_base_urls",
                "start it again and resume the run",
            ) from error
        if response.ok or response.status_code in allowed:
            return response
        raise EngineError(
            f"the vLLM server at {self.url} refused /{route}: {_reason(response)}",
            "rollout.vllm.server_base_urls",
            "see the server's log; it must have been started by `trainer serve` with the policy's model",
        )


def _chunks(model: nn.Module, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """The policy's weights as the servers compute with them, some at a time."""
    chunk: dict[str, Tensor] = {}
    size = 0
    for name, weight in named_weights(model):
        chunk[name] = weight.to(dtype).cpu().contiguous()
        size += chunk[name].nbytes
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk


def _reason(response: requests.Response) -> str:
    lines = response.text.strip().splitlines() or [response.reason or ""]
    return f"{response.status_code} {lines[0][:300]}"

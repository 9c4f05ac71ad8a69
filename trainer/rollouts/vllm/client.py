"""The routes of a vLLM server that training needs: sampling in tokens, and taking weights."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp
import requests
import torch
from torch import Tensor

from trainer.errors import ConfigError, EngineError, MissingError
from trainer.rollouts.engine import PROMPT_OPTIONS, SamplingParams, sampling_options
from trainer.rollouts.vllm.guard import TOKEN_VARIABLE, authorization
from trainer.types import Completion

_TIMEOUTS_S = (10.0, 600.0)  # to connect, and for an answer
_SAMPLING_TIMEOUT_S = 3600.0  # for an answer: a batch of long completions may queue that long
_CONCURRENT_REQUESTS = 512  # half of the files that a process may usually open
_GENERATE = "inference/v1/generate"
POLL_S = 1.0
_INCOMPLETE = "incomplete"  # weights of no run: those of an update that has not ended
_START = "start one with `trainer serve SPEC`, and name it in rollout.vllm.server_base_urls"
# How weights travel, by rollout.vllm.server_weight_transfer: the name of vLLM's backend.
BACKENDS = {"http": "loptune_http", "nccl": "nccl"}


class VllmServer:
    """One server's routes."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._headers = authorization()

    def wait(self, timeout_s: float) -> None:
        """Block until the server is up.

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
                    _START,
                )
            time.sleep(POLL_S)

    def check(self, max_model_len: int, dtype: str, weight_transfer: str) -> None:
        """Check that the server was started with the settings that this run needs.

        Raises:
            EngineError: it lacks the routes that take weights, or was started with other options.
            ConfigError: its context is too short.
        """
        if self._call("GET", "weight_info", allowed=(404,)).status_code == 404:
            raise EngineError(
                f"the vLLM server at {self.url} takes no weights",
                "rollout.vllm.server_base_urls",
                _START,
            )
        # Before its first answer the server collects facts about its machine, which takes some
        # seconds.
        options = self._call("GET", "server_info", params={"config_format": "json"}).json()[
            "vllm_config"
        ]
        model = options["model_config"]
        transfer = options["weight_transfer_config"] or {}
        for name, started_with, wanted in (
            ("--logprobs-mode", model["logprobs_mode"], "processed_logprobs"),
            ("--dtype", model["dtype"].removeprefix("torch."), dtype),
            ("--weight-transfer-config", transfer.get("backend"), BACKENDS[weight_transfer]),
        ):
            if started_with != wanted:
                raise EngineError(
                    f"the vLLM server at {self.url} was started with {name} {started_with}, this "
                    f"run needs {wanted}",
                    "rollout.vllm.server_base_urls",
                    "restart it by `trainer serve` with this run's configuration",
                )
        allowed = model["max_model_len"]
        if allowed < max_model_len:
            raise ConfigError(
                f"the vLLM server at {self.url} has a context of {allowed} tokens, this run needs "
                f"{max_model_len}",
                "data.max_prompt_tokens, rollout.max_new_tokens",
                "lower them, or restart `trainer serve` with this run's configuration",
            )

    def world_size(self) -> int:
        """Return the number of the server's workers."""
        return int(self._call("GET", "get_world_size").json()["world_size"])

    def begin_update(self) -> None:
        """Stop sampling; until all weights have come, theirs is the name of no run."""
        self._call("POST", "pause", params={"mode": "abort"})
        self._call("POST", "update_weight_version", json={"new_version": _INCOMPLETE})

    def connect(self, init_info: dict[str, Any]) -> None:
        """Connect the workers to this trainer, and disconnect them from the one before it."""
        # 500: none is open
        self._call("POST", "finish_weight_update", (500,), json={"weight_version": _INCOMPLETE})
        self._call("POST", "shutdown_weight_transfer_engine")
        self._call("POST", "init_weight_transfer_engine", json={"init_info": init_info})

    def start_update(self) -> None:
        """Make the workers ready for weights."""
        if self._call("POST", "start_weight_update", allowed=(500,)).status_code == 500:
            # A trainer that died during an update left it open.
            self._call("POST", "finish_weight_update", json={"weight_version": _INCOMPLETE})
            self._call("POST", "start_weight_update")

    def abandon_update(self) -> None:
        """Leave the server to other runs after an update that failed; it then has the weights of no
        run.
        """
        with suppress(EngineError):  # the error to report is what made the update fail
            self._call("POST", "finish_weight_update", (500,), json={"weight_version": _INCOMPLETE})
            self._call("POST", "resume")

    def update(self, update_info: dict[str, Any]) -> None:
        """Send the workers the description of weights that their backend receives."""
        self._call("POST", "update_weights", json={"update_info": update_info})

    def end_update(self, name: str) -> None:
        """Sample again, with the new weights under this name."""
        self._call("POST", "finish_weight_update", json={"weight_version": name})
        self._call("POST", "resume")

    def prompt_logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """Return log-probabilities of the tokens after the first, [n - 1]."""
        body = {"token_ids": list(token_ids), "sampling_params": PROMPT_OPTIONS}
        positions = self._call("POST", _GENERATE, json=body).json()["prompt_logprobs"]
        pairs = zip(token_ids[1:], positions[1:], strict=True)
        return torch.tensor([entry[str(token_id)]["logprob"] for token_id, entry in pairs])

    def abort(self, request_ids: Sequence[str]) -> None:
        """End the requests of these names that are under way."""
        with suppress(EngineError):  # the error to report is what made the caller give up
            # as the route calls them
            named = [f"generate-tokens-{request_id}" for request_id in request_ids]
            self._call("POST", "inference/v1/abort_requests", json={"request_ids": named})

    async def complete(
        self,
        session: aiohttp.ClientSession,
        prompt: Sequence[int],
        seed: int,
        params: SamplingParams,
        weights: str,
        request_id: str,
    ) -> Completion:
        """Return one completion by the weights of this name. Canceled, it ends on the server too.

        Raises:
            EngineError: the request failed, or other weights answered.
        """
        options = sampling_options(params, seed)
        body = {"token_ids": list(prompt), "sampling_params": options, "request_id": request_id}
        [choice] = (await self._ask(session, _GENERATE, body))["choices"]
        others = {part["version"] for part in choice["weight_versions"] or ()} - {weights}
        # only a run that brings its weights does that to others
        if choice["finish_reason"] == "abort":
            others = {"those of a run that is just bringing them"}
        if others:
            raise EngineError(
                f"the vLLM server at {self.url} samples with weights that are not this run's "
                f"({others.pop()})",
                "rollout.vllm.server_base_urls",
                "give every run servers of its own; if the server was restarted, resume the run",
            )
        if choice["finish_reason"] not in ("stop", "length"):
            raise EngineError(
                f"the vLLM server at {self.url} did not finish a request: "
                f"{choice['finish_reason']}",
                "rollout.vllm.server_base_urls",
                "see the server's log",
            )
        logprobs = tuple(entry["logprob"] for entry in choice["logprobs"]["content"])
        return Completion(tuple(choice["token_ids"]), logprobs, choice["finish_reason"])

    def _call(
        self, method: str, route: str, allowed: Sequence[int] = (), **options: Any
    ) -> requests.Response:
        try:
            response = requests.request(
                method,
                f"{self.url}/{route}",
                headers=self._headers,
                **{"timeout": _TIMEOUTS_S, **options},
            )
        except requests.RequestException as error:
            raise self._gone(route, error) from error
        if response.ok or response.status_code in allowed:
            return response
        raise self._refused(route, response.status_code, response.text)

    async def _ask(self, session: aiohttp.ClientSession, route: str, body: Any) -> Any:
        try:
            async with session.post(
                f"{self.url}/{route}", json=body, headers=self._headers
            ) as response:
                if response.ok:
                    return await response.json(content_type=None)
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._gone(route, error) from error
        raise self._refused(route, response.status, text)

    def _gone(self, route: str, error: Exception) -> EngineError:
        return EngineError(
            f"the vLLM server at {self.url} is gone ({type(error).__name__} at /{route})",
            "rollout.vllm.server_base_urls",
            "start it again and resume the run",
        )

    def _refused(self, route: str, status: int, text: str) -> EngineError:
        reason = (text.strip().splitlines() or [""])[0][:300]
        if status == 401:
            return EngineError(
                f"the vLLM server at {self.url} has another token than this run",
                TOKEN_VARIABLE,
                f"set {TOKEN_VARIABLE} to one value for both, or share the folder of LOPTUNE_CACHE",
            )
        return EngineError(
            f"the vLLM server at {self.url} refused /{route}: {status} {reason}",
            "rollout.vllm.server_base_urls",
            "see the server's log; it must have been started by `trainer serve` with the policy's "
            "model",
        )


def sampling_session() -> aiohttp.ClientSession:
    """Open connections for many requests that take as long as sampling does."""
    # A connection is not used again: the server may be closing it just then.
    connector = aiohttp.TCPConnector(limit=_CONCURRENT_REQUESTS, force_close=True)
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_TIMEOUTS_S[0], sock_read=_SAMPLING_TIMEOUT_S
    )
    return aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True)

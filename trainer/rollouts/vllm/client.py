"""HTTP client for a vLLM server: token-level sampling and weight updates."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import aiohttp
import requests
import torch
from torch import Tensor

from loptune.errors import ConfigError, EngineError, MissingError, described, one_line
from trainer.rollouts.engine import PROMPT_OPTIONS, SamplingParams, sampling_options
from trainer.rollouts.vllm.guard import TOKEN_VARIABLE, authorization
from trainer.rollouts.vllm.upload import CONTENT_TYPE
from trainer.types import Completion

_TIMEOUTS_S = (10.0, 600.0)  # connect and read timeouts
_SAMPLING_TIMEOUT_S = 3600.0  # read timeout of sampling: long completions may queue
_CONCURRENT_REQUESTS = 512  # half of the usual limit of open files
_GENERATE = "inference/v1/generate"
POLL_S = 1.0
_INCOMPLETE = "incomplete"  # weight version during an unfinished update
_START = "start one with `trainer serve SPEC`, and add it to rollout.vllm.server_base_urls"
# rollout.vllm.server_weight_transfer -> vLLM weight-transfer backend
BACKENDS = {"http": "loptune_http", "nccl": "nccl"}


class VllmClient:
    """Client of one vLLM server."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._headers = authorization()

    def wait(self, timeout_s: float) -> None:
        """Wait until the server is healthy.

        Raises:
            MissingError: the server is not healthy after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                response = requests.get(f"{self.url}/health", timeout=10)
                if response.ok:
                    return
                fault = f"/health: {response.status_code} {response.reason}"
            except requests.RequestException as error:
                fault = described(error)
            if time.monotonic() > deadline:
                raise MissingError(
                    f"no vLLM server is ready at {self.url} ({timeout_s:g} s): {one_line(fault)}",
                    "rollout.vllm.server_base_urls",
                    _START,
                    code="no-server",
                )
            time.sleep(POLL_S)

    def check(self, max_model_len: int, dtype: str, weight_transfer: str) -> None:
        """Check that the server was started with the settings that this run needs.

        Raises:
            EngineError: the server has no weight-update routes, or was started with different
            options.
            ConfigError: the server's context is too short.
        """
        if self._call("GET", "weight_info", allowed=(404,)).status_code == 404:
            raise EngineError(
                f"the vLLM server at {self.url} does not accept weight updates",
                "rollout.vllm.server_base_urls",
                _START,
                code="no-weight-updates",
            )
        # the first call takes a few seconds, while the server collects system information
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
                    f"the vLLM server at {self.url} was started with {name} {started_with}, but "
                    f"this run needs {wanted}",
                    "rollout.vllm.server_base_urls",
                    "restart it with `trainer serve` and this run's configuration",
                    code="server-settings",
                )
        allowed = model["max_model_len"]
        if allowed < max_model_len:
            raise ConfigError(
                f"the vLLM server at {self.url} has a context of {allowed} tokens, but this run "
                f"needs {max_model_len}",
                "data.max_prompt_tokens, rollout.max_new_tokens",
                "lower them, or restart `trainer serve` with this run's configuration",
                code="server-context",
            )

    def world_size(self) -> int:
        """Return the server's number of workers."""
        return int(self._call("GET", "get_world_size").json()["world_size"])

    def pause_for_update(self) -> None:
        """Pause sampling and mark the weights as incomplete."""
        self._call("POST", "pause", params={"mode": "abort"})
        self._call("POST", "update_weight_version", json={"new_version": _INCOMPLETE})

    def connect(self, init_info: dict[str, Any]) -> None:
        """Connect the workers to this trainer, and disconnect the previous one."""
        # 500: no update is open
        self._call("POST", "finish_weight_update", (500,), json={"weight_version": _INCOMPLETE})
        self._call("POST", "shutdown_weight_transfer_engine")
        self._call("POST", "init_weight_transfer_engine", json={"init_info": init_info})

    def start_update(self) -> None:
        """Open a weight update on the workers."""
        if self._call("POST", "start_weight_update", allowed=(500,)).status_code == 500:
            # close the update of a trainer that died
            self._call("POST", "finish_weight_update", json={"weight_version": _INCOMPLETE})
            self._call("POST", "start_weight_update")

    def abort_update(self) -> None:
        """Close a failed update so that other runs can use the server. Its weights stay marked as
        incomplete.
        """
        with suppress(EngineError):  # report the original error instead
            self._call("POST", "finish_weight_update", (500,), json={"weight_version": _INCOMPLETE})
            self._call("POST", "resume")

    def update(self, update_info: dict[str, Any]) -> None:
        """Send the workers one update_info for their weight-transfer backend."""
        self._call("POST", "update_weights", json={"update_info": update_info})

    def upload(self, safetensors: bytes) -> None:
        """Send the workers a chunk of weights over HTTP."""
        binary = {"Content-Type": CONTENT_TYPE}
        self._call("POST", "update_weights", data=safetensors, headers=binary)

    def finish_update(self, name: str) -> None:
        """Finish the update, set the weight version, and resume sampling."""
        self._call("POST", "finish_weight_update", json={"weight_version": name})
        self._call("POST", "resume")

    def prompt_logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """Return log-probabilities of the tokens after the first, [n - 1]."""
        body = {"token_ids": list(token_ids), "sampling_params": PROMPT_OPTIONS}
        positions = self._call("POST", _GENERATE, json=body).json()["prompt_logprobs"]
        pairs = zip(token_ids[1:], positions[1:], strict=True)
        return torch.tensor([entry[str(token_id)]["logprob"] for token_id, entry in pairs])

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort running requests."""
        with suppress(EngineError):  # report the original error instead
            # the server adds this prefix to the ids
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
        """Sample one completion with the given weight version. If this coroutine is canceled, the
        server aborts the request, too.

        Raises:
            EngineError: the request failed, or was served with other weights.
        """
        options = sampling_options(params, seed)
        body = {"token_ids": list(prompt), "sampling_params": options, "request_id": request_id}
        [choice] = (await self._ask(session, _GENERATE, body))["choices"]
        other_versions = {part["version"] for part in choice["weight_versions"] or ()} - {weights}
        # requests are only aborted when another run updates the weights
        if choice["finish_reason"] == "abort":
            other_versions = {"another run is updating them"}
        if other_versions:
            raise EngineError(
                f"the vLLM server at {self.url} sampled with another run's weights "
                f"({other_versions.pop()})",
                "rollout.vllm.server_base_urls",
                "use separate servers for each run; if the server was restarted, resume the run",
                code="other-weights",
            )
        if choice["finish_reason"] not in ("stop", "length"):
            raise EngineError(
                f"the vLLM server at {self.url} did not finish a request: "
                f"{choice['finish_reason']}",
                "rollout.vllm.server_base_urls",
                "see the server's log",
                code="request-unfinished",
            )
        logprobs = tuple(entry["logprob"] for entry in choice["logprobs"]["content"])
        return Completion(tuple(choice["token_ids"]), logprobs, choice["finish_reason"])

    def _call(
        self,
        method: str,
        route: str,
        allowed: Sequence[int] = (),
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> requests.Response:
        try:
            response = requests.request(
                method,
                f"{self.url}/{route}",
                headers={**self._headers, **(headers or {})},
                **{"timeout": _TIMEOUTS_S, **options},
            )
        except requests.RequestException as error:
            raise self._unreachable(route, error) from error
        if response.ok or response.status_code in allowed:
            return response
        raise self._http_error(route, response.status_code, response.text)

    async def _ask(self, session: aiohttp.ClientSession, route: str, body: Any) -> Any:
        try:
            async with session.post(
                f"{self.url}/{route}", json=body, headers=self._headers
            ) as response:
                if response.ok:
                    return await response.json(content_type=None)
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(route, error) from error
        raise self._http_error(route, response.status, text)

    def _unreachable(self, route: str, error: Exception) -> EngineError:
        return EngineError(
            f"lost the vLLM server at {self.url} ({type(error).__name__} at /{route})",
            "rollout.vllm.server_base_urls",
            "stop its remaining processes, restart it, and resume the run",
            code="server-lost",
        )

    def _http_error(self, route: str, status: int, text: str) -> EngineError:
        reason = (text.strip().splitlines() or [""])[0][:300]
        if status == 401:
            return EngineError(
                f"the vLLM server at {self.url} rejected this run's token",
                TOKEN_VARIABLE,
                f"set {TOKEN_VARIABLE} to the same value for server and run, or share the "
                "LOPTUNE_CACHE folder",
                code="server-token",
            )
        return EngineError(
            f"the vLLM server at {self.url} rejected /{route}: {status} {reason}",
            "rollout.vllm.server_base_urls",
            "check the server's log; the server must have been started with `trainer serve` and "
            "the policy's model",
            code="server-refused",
        )


def on_all(
    call: Callable[..., None], servers: Sequence[VllmClient], *arguments: Sequence[Any]
) -> None:
    """Call a method of all servers in parallel, with each server's element of ``arguments``, and
    wait for all.

    Raises:
        EngineError: the error of the first server that has one.
    """
    if not servers:
        return
    with ThreadPoolExecutor(len(servers), thread_name_prefix="server") as pool:
        list(pool.map(call, servers, *arguments))


def sampling_session() -> aiohttp.ClientSession:
    """Return an HTTP session for many concurrent, long-running sampling requests."""
    # no keep-alive: the server may close an idle connection just as it is reused
    connector = aiohttp.TCPConnector(limit=_CONCURRENT_REQUESTS, force_close=True)
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_TIMEOUTS_S[0], sock_read=_SAMPLING_TIMEOUT_S
    )
    return aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True)

import json
import sys

from research.learning_rate_peaks import main

RATES = [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3]


def test_only_all_planned_seeds_decide_and_complete_ones_are_shown_before(
    tmp_path, monkeypatch, capsys
):
    for seed in range(6):
        events = []
        for place, rule in enumerate(["GRPO", "two epochs", "Lopti"] * len(RATES)):
            step = place // 3
            point = {"rule": rule, "optim.lr": RATES[step]}
            score = 0.5 - 0.01 * (step - 2) ** 2 + 0.001 * seed * (place % 3)
            result = {"configuration": place, "seed": seed, "state": "COMPLETE", "score": score}
            events += [
                {"event": "configuration", "configuration": place, "parameters": point},
                {"event": "result", **result},
            ]
        lines = [json.dumps(event) for event in events[: -1 if seed == 4 else None]]
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "events.jsonl").write_text("\n".join(lines) + "\n")

    def printed(seeds):
        monkeypatch.setattr(sys, "argv", ["", *(str(tmp_path / str(seed)) for seed in seeds)])
        main()
        return capsys.readouterr().out

    assert "primary:" not in printed(range(6))  # a trial of Lopti is open
    begun = printed([0, 2, 4])
    assert "nothing is analyzed yet" in begun and "primary:" not in begun
    means = "Lopti: means of seeds [0, 2] at each learning rate 0.462 0.492 0.502 0.492 0.462"
    assert means in begun
    # seeds 0 and 2 differ by 0.002, so the standard error of their mean is 0.001
    assert "INTERIM, not the planned analysis, decides nothing: seeds [0, 2]" in begun
    assert "Lopti - two epochs: +0.0010 [-0.0053, +0.0073], " in begun
    last = tmp_path / "4" / "events.jsonl"
    last.write_text(last.read_text() + json.dumps({"event": "result", **result, "seed": 4}) + "\n")
    whole = printed(range(6))
    assert "  primary: equivalent" in whole and "INTERIM" not in whole
    low = json.dumps({"event": "result", **result, "seed": 4, "score": 0.1})
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "events.jsonl").write_text(f"{json.dumps(events[-2])}\n{low}\n")
    assert printed([*range(6), "again"]) == whole  # of a trial that ran twice the first counts

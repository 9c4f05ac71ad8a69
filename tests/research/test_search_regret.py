from research.search_regret import FAILURES, LESSONS, SAMPLERS, search, space_of


def test_a_search_records_scores_and_divergence():
    surface = FAILURES["60% diverge"]
    ended = search(space_of(surface.parameters, SAMPLERS["GP, 4 random"], 0), surface, 8)
    results = [configuration.results[0] for configuration in ended]
    assert {result.state for result in results} == {"COMPLETE", "FAIL"}
    assert all((result.state == "FAIL") == (result.score != result.score) for result in results)
    # the sampler is told of them as of failures that the settings explain
    assert all((result.state == "FAIL") == result.by_settings for result in results)


def test_what_a_sampler_is_told_of_failures_changes_what_it_proposes():
    surface = FAILURES["60% diverge"]
    spec = space_of(surface.parameters, SAMPLERS["GP, 4 random"], 0)
    proposed = set()
    for lesson in LESSONS:
        ended = search(spec, surface, 8, lesson)
        proposed.add(tuple(each.fingerprint for each in ended))
    assert len(proposed) > 2

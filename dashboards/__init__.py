from dashboards.judging import Judgement, judge

__all__ = ["Judgement", "judge"]

//! Latencies in the status: of each volume, of all, and of the stages that the time went to.

use crate::ShardStatus;
use crate::latency::{ByOp, Latencies, Op, STAGES, Series, Summary};
use serde_json::{Map, Value, json};

/// What all shards have counted.
pub fn sum(shards: &[ShardStatus]) -> Latencies {
    let mut sum = Latencies::default();
    shards.iter().for_each(|shard| sum.add(&shard.latencies));
    sum
}

/// Of everything that was asked, and where the time went.
pub fn json(latencies: &Latencies) -> Value {
    let stage = |(name, stage): (&&str, &ByOp)| {
        ((*name).to_owned(), told(stage, |series| Summary::of(series).json()))
    };
    let stages: Map<String, Value> = STAGES.iter().zip(&latencies.stages).map(stage).collect();
    let refused: u64 = latencies.refused.values().sum();
    json!({ "requests": by_op(&latencies.whole()), "stages": stages, "refused": refused })
}

/// By operation, with bytes and errors; what never came is not there.
pub fn by_op(by_op: &ByOp) -> Value {
    told(by_op, |series| {
        let mut value = Summary::of(series).json();
        value["bytes"] = series.bytes.into();
        value["errors"] = series.errors.into();
        value
    })
}

fn told(by_op: &ByOp, tell: impl Fn(&Series) -> Value) -> Value {
    let known = Op::ALL.into_iter().zip(by_op);
    let one = known.filter_map(|(op, series)| Some((op.name().into(), tell(series.as_ref()?))));
    Value::Object(one.collect())
}

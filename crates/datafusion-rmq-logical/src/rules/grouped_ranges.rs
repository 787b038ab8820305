//! An aggregate over a join on a range of which some aggregates are over a part of the range (`narrowed_ranges`).

use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::{Expr, LogicalPlan};

use crate::conditions::rejection::Match;
use crate::logical_plan::range_join::{RangeJoin, Unmatched};
use crate::rules::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, DecomposedAggregate,
};
use crate::rules::common::plans::extension;
use crate::rules::condition_parts::{Condition, Constants, equal_ends};
use crate::rules::grouped_join::{GroupedJoin, Joined, Sides, check_accumulators};
use crate::rules::narrowed_ranges::NarrowedRanges;

impl GroupedJoin<'_> {
    /// A range join of all rows, where these are needed, and one for each range within it.
    pub fn join_in_ranges(
        &self,
        (probe, build): Sides<'_>,
        on: &[(Expr, Expr)],
        rest: &[Expr],
        ranges: &NarrowedRanges,
    ) -> Match<Joined> {
        let unmatched = self.unmatched();
        let matched = |on: &[(Expr, Expr)], conditions: &[Expr]| -> Match<Condition> {
            let rest = [rest, conditions].concat();
            let constants = Constants::Filter;
            let (probe, build) = (probe.schema(), build.schema());
            let condition = Condition::try_match(on.to_vec(), rest, constants, probe, build)?;
            condition.check_infallible(false, build)?;
            Ok(condition)
        };
        let mut joined = Joined {
            plan: probe.as_ref().clone(),
            on: on.to_vec(),
            merges: vec![],
            values: vec![],
            statistics: vec![],
            only_accumulates: false,
        };
        let mut all = vec![];
        if unmatched == Unmatched::Drop || !ranges.all.is_empty() {
            let condition = matched(on, &[]).or_else(|reason| {
                // Without a range, an equality is one.
                let mut keys = on.iter().enumerate();
                let range = keys.find_map(|(i, (ours, theirs))| {
                    let ends = equal_ends(theirs, ours, build.schema()).ok()??;
                    Some((i, ends))
                });
                let Some((i, range)) = range else {
                    return Err(reason);
                };
                let others = [&on[..i], &on[i + 1..]].concat();
                matched(&others, &range).map_err(|_| reason)
            })?;
            let input = AggregateInput::Join(unmatched);
            all = self.add_join(
                &mut joined,
                build,
                condition,
                (unmatched, input),
                &ranges.all,
            )?;
        }
        let mut found = vec![];
        for range in &ranges.narrowed {
            // It may fail for rows without a match, too: they are dropped, or have a row of NULLs for which DataFusion
            // evaluates it.
            let condition = matched(on, &range.conditions)?;
            let kind = (Unmatched::Keep, AggregateInput::Narrowed);
            let added = self.add_join(&mut joined, build, condition, kind, &range.calls)?;
            found.push(added.into_iter().map(|added| added.group_value).collect());
        }
        let all: Vec<Expr> = all.into_iter().map(|added| added.group_value).collect();
        joined.values = ranges.values(&all, &found)?;
        Ok(joined)
    }

    /// Puts a range join above those before, and adds what merges its aggregates.
    fn add_join(
        &self,
        joined: &mut Joined,
        build: &LogicalPlan,
        mut condition: Condition,
        (unmatched, input): (Unmatched, AggregateInput),
        calls: &[AggregateFunction],
    ) -> Match<Vec<DecomposedAggregate>> {
        let probe = std::mem::take(&mut joined.plan);
        let schemas = (probe.schema().as_ref(), build.schema().as_ref());
        let mut decomposition =
            AggregateDecomposition::new(schemas, &condition, input, self.config);
        let found = calls.iter().map(|call| decomposition.decompose(call));
        let found: Vec<DecomposedAggregate> = found.collect::<Match<_>>()?;
        check_accumulators(&decomposition)?;
        let aggregates = decomposition.aggregates;
        let thresholds = decomposition.thresholds;
        joined.statistics.extend(decomposition.statistics);
        let build = condition.filter_build(build.clone())?;
        joined.on.clone_from(&condition.on);
        let spec = condition.into_spec(unmatched, thresholds, aggregates, self.metadata());
        joined.plan = extension(RangeJoin::try_new(probe, build, spec)?);
        let merges = found
            .iter()
            .flat_map(|found| found.group_aggregates.clone());
        joined.merges.extend(merges);
        Ok(found)
    }
}

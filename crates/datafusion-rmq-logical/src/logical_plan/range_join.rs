//! The logical node that aggregates, for each row, the rows of another relation whose key is in a range.
//!
//! ```text
//!   SELECT t.id, min(q.price) FROM trades t JOIN quotes q ON q.sym = t.sym AND q.ts BETWEEN t.a AND t.b GROUP BY t.id
//!
//!   Projection: t.id, min(q.price)
//!     Aggregate: group by t.id, min of min(q.price)#1
//!       RangeJoin: on=[sym], range=q.ts in [t.a, t.b], aggs=[min(q.price)]     adds the column min(q.price)#1
//!         trades t                                                             probe side
//!         quotes q                                                             build side
//! ```

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion_common::{DFSchema, DFSchemaRef, Result, TableReference, internal_err};
use datafusion_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use crate::common::inputs::inputs_of;
use crate::common::sql_text::sql_text;
use crate::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOutput};
use crate::logical_plan::node_methods::node_methods;
use rmq_engine::Comparison;
use rmq_engine::{Extreme, RangeEnd};

/// For each row of the probe side, aggregates the rows of the build side whose equality keys are equal and whose range
/// key is within the bounds.
///
/// The output is the columns of the probe side, then one column per aggregate. Rows keep their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeJoin {
    probe: LogicalPlan,
    build: LogicalPlan,
    spec: RangeJoinSpec<Expr>,
    schema: DFSchemaRef,
}

/// The keys, bounds and aggregates of a range join, in logical ([`Expr`]) or physical expressions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RangeJoinSpec<E> {
    /// What happens to a probe row without a match.
    pub unmatched: Unmatched,
    /// Pairs of equality keys, over the probe side and over the build side, of equal types. NULL matches nothing.
    pub on: Vec<(E, E)>,
    /// The range key, over the build side. NULL matches nothing.
    pub key: E,
    /// The comparisons of the range key with bounds over the probe side. All must hold.
    pub bounds: Vec<(Comparison, E)>,
    /// Whether the row that is in force at the start of the range matches too: the last one whose range key is at or
    /// before the only lower bound, unless a bound is NULL or the lower bound is above an upper one.
    pub prevailing: bool,
    /// Thresholds over the probe side, to which [`AggregateKind::AtCrossing`] and [`AggregateKind::CountCrossing`]
    /// refer by index. No row qualifies for NULL.
    pub thresholds: Vec<E>,
    /// The aggregates over the matching rows.
    pub aggregates: Vec<RangeAggregate<E>>,
    /// The metadata of the output schema. A join that was replaced had that of both sides, and plans above may rely on
    /// it.
    pub metadata: BTreeMap<String, String>,
}

/// What happens to a probe row without a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum Unmatched {
    /// It is dropped, as by an inner join.
    Drop,
    /// It is kept, as by a left join: counts are 0, other aggregates NULL.
    Keep,
    /// Only such rows are kept, as by an anti join.
    Only,
}

/// One aggregate over the matching rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RangeAggregate<E> {
    /// The aggregate function.
    pub function: AggregateKind,
    /// Its arguments, over the build side; [`AggregateKind`] says how many.
    pub arguments: Vec<E>,
    /// The name of the added column.
    pub output: String,
    /// The type of the added column.
    pub data_type: DataType,
    /// The function of [`AggregateKind::Accumulate`]; `None` for others.
    pub call: Option<Arc<AccumulatorCall>>,
}

/// An aggregate function over the matching rows. NULLs are skipped; without a value the result is NULL, and 0 for
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum AggregateKind {
    /// `(x)`: the smallest or greatest x, floats in IEEE total order.
    Extreme(Extreme),
    /// `()`: the number of matching rows.
    CountRows,
    /// `(x)`: the number of x that are not NULL.
    Count,
    /// `(x)`: the sum of x.
    Sum,
    /// `(x)`: the low part of the double-double sum of floats x, the rounding error of `Sum`. With it, sums of spill
    /// runs are added exactly as a sum of all rows.
    SumLow,
    /// `(x)`: x of the first row by the range key; of equal keys, the first row in input order.
    First,
    /// `(x)`: x of the last row by the range key; of equal keys, the first row in input order.
    Last,
    /// `(x)`: x of the last row by the range key; of equal keys, the last row in input order.
    Rightmost,
    /// `(x, v)`: x of the row with the smallest or greatest v; of equal v, the first row by the range key.
    AtExtreme {
        /// The smallest or the greatest v.
        extreme: Extreme,
        /// Whether a row whose v is NULL is taken before all others instead of after them.
        nulls_first: bool,
    },
    /// `(x, v)`: x of the first or last row by the range key whose v compares so with a threshold of the probe row. Of
    /// equal keys it is the first, or last, row in input order. A NULL v does not qualify; -0.0 equals 0.0.
    AtCrossing {
        /// The end of the range where the search begins.
        end: RangeEnd,
        /// How v compares with the threshold.
        comparison: Comparison,
        /// The index of the threshold among [`RangeJoinSpec::thresholds`].
        threshold: usize,
    },
    /// `(v)`: the number of rows whose v compares so with a threshold of the probe row. A NULL v does not qualify; -0.0
    /// equals 0.0.
    CountCrossing {
        /// How v compares with the threshold.
        comparison: Comparison,
        /// The index of the threshold among [`RangeJoinSpec::thresholds`].
        threshold: usize,
    },
    /// Any aggregate function, whose accumulator sees the matching rows by the range key, those of equal keys in input
    /// order: see [`AccumulatorCall`]. It decides what it does with NULLs and returns without rows, unless its state is
    /// returned.
    Accumulate,
}

impl AggregateKind {
    /// The index of the threshold that rows have to cross, if there is one.
    pub fn threshold_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::AtCrossing { threshold, .. } | Self::CountCrossing { threshold, .. } => {
                Some(threshold)
            }
            _ => None,
        }
    }
}

impl<E> RangeAggregate<E> {
    /// The field of the added column. Counts are not nullable.
    #[must_use]
    pub fn field(&self) -> Field {
        let counts = matches!(
            self.function,
            AggregateKind::CountRows | AggregateKind::Count | AggregateKind::CountCrossing { .. }
        );
        Field::new(&self.output, self.data_type.clone(), !counts)
    }
}

impl<E> RangeAggregate<E> {
    /// Whether it is the range itself, whose rows are aggregated later.
    pub fn is_range(&self) -> bool {
        let call = self.call.as_ref();
        call.is_some_and(|call| call.output == AccumulatorOutput::Range)
    }
}

impl<E> RangeJoinSpec<E> {
    /// Whether an aggregate is the range itself, whose rows are aggregated later.
    pub fn returns_ranges(&self) -> bool {
        self.aggregates.iter().any(RangeAggregate::is_range)
    }

    /// Whether an aggregate counts the rows that cross a threshold.
    pub fn counts_crossings(&self) -> bool {
        let mut functions = self.aggregates.iter().map(|a| a.function);
        functions.any(|f| matches!(f, AggregateKind::CountCrossing { .. }))
    }

    /// All expressions: pairs of equality keys, the range key, bounds, thresholds, arguments.
    pub fn expressions(&self) -> impl Iterator<Item = &E> {
        let on = self.on.iter().flat_map(|(probe, build)| [probe, build]);
        let bounds = self.bounds.iter().map(|(_, bound)| bound);
        let arguments = self.aggregates.iter().flat_map(|a| &a.arguments);
        on.chain(std::iter::once(&self.key))
            .chain(bounds)
            .chain(&self.thresholds)
            .chain(arguments)
    }

    /// The expressions over the probe side.
    pub fn probe_expressions(&self) -> impl Iterator<Item = &E> {
        let on = self.on.iter().map(|(probe, _)| probe);
        on.chain(self.bounds.iter().map(|(_, bound)| bound))
            .chain(&self.thresholds)
    }

    /// The expressions over the build side.
    pub fn build_expressions(&self) -> impl Iterator<Item = &E> {
        let on = self.on.iter().map(|(_, build)| build);
        let arguments = self.aggregates.iter().flat_map(|a| &a.arguments);
        on.chain(std::iter::once(&self.key)).chain(arguments)
    }

    /// Converts the expressions, those over the probe side with `probe` and those over the build side with `build`.
    ///
    /// # Errors
    /// The first error of `probe` or `build`.
    pub fn try_map<T>(
        &self,
        probe: impl Fn(&E) -> Result<T>,
        build: impl Fn(&E) -> Result<T>,
    ) -> Result<RangeJoinSpec<T>> {
        let on = self.on.iter().map(|(p, b)| Ok((probe(p)?, build(b)?)));
        let bounds = self.bounds.iter().map(|(c, bound)| Ok((*c, probe(bound)?)));
        let aggregates = self.aggregates.iter().map(|aggregate| {
            Ok(RangeAggregate {
                function: aggregate.function,
                arguments: aggregate
                    .arguments
                    .iter()
                    .map(&build)
                    .collect::<Result<_>>()?,
                output: aggregate.output.clone(),
                data_type: aggregate.data_type.clone(),
                call: aggregate.call.clone(),
            })
        });
        let thresholds = self.thresholds.iter().map(&probe);
        let thresholds = thresholds.collect::<Result<_>>()?;
        Ok(RangeJoinSpec {
            thresholds,
            unmatched: self.unmatched,
            on: on.collect::<Result<_>>()?,
            key: build(&self.key)?,
            bounds: bounds.collect::<Result<_>>()?,
            prevailing: self.prevailing,
            aggregates: aggregates.collect::<Result<_>>()?,
            metadata: self.metadata.clone(),
        })
    }

    /// Replaces the expressions, given in the order of [`Self::expressions`].
    pub fn with_expressions(mut self, expressions: Vec<E>) -> Result<Self> {
        if expressions.len() != self.expressions().count() {
            return internal_err!(
                "a range join has other expressions than {}",
                expressions.len()
            );
        }
        let on = self.on.iter_mut().flat_map(|(probe, build)| [probe, build]);
        let bounds = self.bounds.iter_mut().map(|(_, bound)| bound);
        let arguments = self.aggregates.iter_mut().flat_map(|a| &mut a.arguments);
        let targets = on
            .chain(std::iter::once(&mut self.key))
            .chain(bounds)
            .chain(&mut self.thresholds)
            .chain(arguments);
        for (target, expression) in targets.zip(expressions) {
            *target = expression;
        }
        Ok(self)
    }
}

impl RangeJoin {
    /// Joins `probe` and `build`. No check is made that types fit; the operator makes it.
    ///
    /// # Errors
    /// A schema error if the name of an added column is an unqualified column of the probe side.
    pub fn try_new(
        probe: LogicalPlan,
        build: LogicalPlan,
        spec: RangeJoinSpec<Expr>,
    ) -> Result<Self> {
        let schema = Self::schema_of(probe.schema(), &spec)?;
        Ok(Self {
            probe,
            build,
            spec,
            schema: Arc::new(schema),
        })
    }

    /// The output schema: the columns of the probe side, and one column per aggregate.
    ///
    /// # Errors
    /// As [`Self::try_new`].
    pub fn schema_of(probe: &DFSchema, spec: &RangeJoinSpec<Expr>) -> Result<DFSchema> {
        let outputs = spec
            .aggregates
            .iter()
            .map(|aggregate| (None::<TableReference>, Arc::new(aggregate.field())));
        let fields = probe.iter().map(|(q, f)| (q.cloned(), Arc::clone(f)));
        let dependencies = probe.functional_dependencies().clone();
        let metadata = spec.metadata.clone().into_iter().collect();
        DFSchema::new_with_metadata(fields.chain(outputs).collect(), metadata)?
            .with_functional_dependencies(dependencies)
    }

    /// Whether the output has the same rows whenever the inputs have, in whatever order these come.
    pub fn repeats_rows(&self) -> bool {
        let is_orderless = |aggregate: &RangeAggregate<Expr>| match aggregate.function {
            AggregateKind::CountRows
            | AggregateKind::Count
            | AggregateKind::CountCrossing { .. }
            | AggregateKind::Extreme(_) => true,
            AggregateKind::Sum => !aggregate.data_type.is_floating(),
            _ => false,
        };
        !self.spec.prevailing && self.spec.aggregates.iter().all(is_orderless)
    }

    /// Removes a filter without columns, such as `random() < 0.5`, from the build side. DataFusion pushes it to all
    /// inputs, but it is about the output rows, which are those of the probe side.
    fn unfiltered(&self, build: LogicalPlan) -> LogicalPlan {
        match build {
            LogicalPlan::Filter(filter)
                if filter.predicate.column_refs().is_empty() && *filter.input == self.build =>
            {
                Arc::unwrap_or_clone(filter.input)
            }
            other => other,
        }
    }

    /// The side whose rows are kept.
    #[must_use]
    pub fn probe(&self) -> &LogicalPlan {
        &self.probe
    }

    /// The side whose rows are aggregated.
    #[must_use]
    pub fn build(&self) -> &LogicalPlan {
        &self.build
    }

    /// The keys, bounds and aggregates.
    #[must_use]
    pub fn spec(&self) -> &RangeJoinSpec<Expr> {
        &self.spec
    }
}

impl RangeJoinSpec<Expr> {
    /// What matches, as EXPLAIN shows it: `type=Left`, `on=[sym]`, `range=p.ts in [q.a, q.b)`.
    pub fn shown_condition(&self) -> Vec<String> {
        let kind = match self.unmatched {
            Unmatched::Drop => "Inner",
            Unmatched::Keep => "Left",
            Unmatched::Only => "LeftAnti",
        };
        let mut shown = vec![format!("type={kind}")];
        if !self.on.is_empty() {
            let on = self.on.iter().map(|(probe, build)| match (probe, build) {
                (Expr::Column(p), Expr::Column(b)) if p.name == b.name => p.name.clone(),
                (probe, build) => format!("{} = {}", sql_text(build), sql_text(probe)),
            });
            shown.push(format!("on=[{}]", on.collect::<Vec<_>>().join(", ")));
        }
        let bounds = self.bounds.iter().map(|(c, bound)| (*c, sql_text(bound)));
        let (key, bounds) = (sql_text(&self.key), bounds.collect::<Vec<_>>());
        let prevailing = if self.prevailing {
            " include prevailing"
        } else {
            ""
        };
        let interval = KeyInterval(&bounds);
        shown.push(format!("range={key} in {interval}{prevailing}"));
        shown
    }

    /// The join as EXPLAIN shows it: what matches, and `aggs=[min(p.close), count(*)]`.
    pub fn shown(&self) -> Vec<String> {
        let mut shown = self.shown_condition();
        let aggregates = self.aggregates.iter().map(|aggregate| {
            match (aggregate.function, aggregate.arguments.as_slice()) {
                (
                    AggregateKind::AtCrossing {
                        end,
                        comparison,
                        threshold,
                    },
                    [x, v],
                ) => {
                    let [x, v, threshold] = [x, v, &self.thresholds[threshold]].map(sql_text);
                    let (end, op) = (end.name(), operator(comparison));
                    format!("{end}({x} where {v} {op} {threshold})")
                }
                (
                    AggregateKind::CountCrossing {
                        comparison,
                        threshold,
                    },
                    [v],
                ) => {
                    let [v, threshold] = [v, &self.thresholds[threshold]].map(sql_text);
                    let op = operator(comparison);
                    format!("count(* where {v} {op} {threshold})")
                }
                _ => aggregate.to_string(),
            }
        });
        let aggregates = aggregates.collect::<Vec<_>>().join(", ");
        shown.push(format!("aggs=[{aggregates}]"));
        shown
    }
}

/// `type=Left, on=[sym], range=p.ts in [q.a, q.b), aggs=[min(p.close), count(*)]`.
impl Display for RangeJoinSpec<Expr> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown().join(", "))
    }
}

/// The SQL operator of a comparison.
pub fn operator(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::AtLeast => ">=",
        Comparison::Above => ">",
        Comparison::AtMost => "<=",
        Comparison::Below => "<",
    }
}

/// Bounds as an interval, `[q.a, q.b)`. Several lower bounds are shown as their greatest, several upper ones as their
/// least.
pub struct KeyInterval<'a, E>(pub &'a [(Comparison, E)]);

impl<E: Display> Display for KeyInterval<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |lower: bool, tightest: &str| {
            let bounds: Vec<_> = self
                .0
                .iter()
                .filter(|(c, _)| c.is_lower() == lower)
                .collect();
            let strict = bounds.iter().any(|(c, _)| c.is_strict());
            let texts: Vec<_> = bounds.iter().map(|(_, bound)| bound.to_string()).collect();
            match texts.as_slice() {
                [] if lower => (true, "-inf".to_string()),
                [] => (true, "inf".to_string()),
                [one] => (strict, one.clone()),
                many => (strict, format!("{tightest}({})", many.join(", "))),
            }
        };
        let (lower_strict, lower) = end(true, "greatest");
        let (upper_strict, upper) = end(false, "least");
        let (open, close) = (
            if lower_strict { '(' } else { '[' },
            if upper_strict { ')' } else { ']' },
        );
        write!(f, "{open}{lower}, {upper}{close}")
    }
}

impl Display for RangeAggregate<Expr> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(call) = &self.call {
            let prefix = match call.output {
                AccumulatorOutput::Value => "",
                AccumulatorOutput::State => "state of ",
                AccumulatorOutput::Range => "rows of ",
            };
            return write!(f, "{prefix}{}", call.text);
        }
        let arguments: Vec<String> = self.arguments.iter().map(sql_text).collect();
        match (self.function, arguments.as_slice()) {
            (AggregateKind::Extreme(extreme), [x]) => write!(f, "{}({x})", extreme.name()),
            (AggregateKind::Count, [x]) => write!(f, "count({x})"),
            (AggregateKind::Sum, [x]) => write!(f, "sum({x})"),
            (AggregateKind::SumLow, [x]) => write!(f, "sum_rest({x})"),
            (AggregateKind::First, [x]) => write!(f, "first({x})"),
            (AggregateKind::Last, [x]) => write!(f, "last({x})"),
            (AggregateKind::Rightmost, [x]) => write!(f, "rightmost({x})"),
            (
                AggregateKind::AtExtreme {
                    extreme,
                    nulls_first,
                },
                [x, v],
            ) => {
                let order = match extreme {
                    Extreme::Min => "",
                    Extreme::Max => " DESC",
                };
                let nulls = if nulls_first { " NULLS FIRST" } else { "" };
                write!(f, "first({x} by {v}{order}{nulls})")
            }
            // The threshold is the join's.
            (AggregateKind::AtCrossing { end, .. }, [x, v]) => {
                write!(f, "{}({x} where {v})", end.name())
            }
            (AggregateKind::CountCrossing { .. }, [v]) => write!(f, "count(* where {v})"),
            _ => write!(f, "count(*)"),
        }
    }
}

impl UserDefinedLogicalNodeCore for RangeJoin {
    node_methods!("RangeJoin", [probe, build]);

    fn expressions(&self) -> Vec<Expr> {
        self.spec.expressions().cloned().collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeJoin: {}", self.spec)
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [probe, build] = inputs_of("RangeJoin", inputs)?;
        let build = self.unfiltered(build);
        // Rules alias an expression that they change to its old name. Names have no meaning here.
        let exprs = exprs.into_iter().map(Expr::unalias).collect();
        Self::try_new(probe, build, self.spec.clone().with_expressions(exprs)?)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let columns_of = |exprs: &mut dyn Iterator<Item = &Expr>, plan: &LogicalPlan| {
            exprs
                .flat_map(Expr::column_refs)
                .map(|column| plan.schema().maybe_index_of_column(column))
                .collect::<Option<BTreeSet<usize>>>()
        };
        let mut probe = columns_of(&mut self.spec.probe_expressions(), &self.probe)?;
        let columns = self.probe.schema().fields().len();
        probe.extend(output_columns.iter().filter(|column| **column < columns));
        let build = columns_of(&mut self.spec.build_expressions(), &self.build)?;
        Some(vec![
            probe.into_iter().collect(),
            build.into_iter().collect(),
        ])
    }
}

impl Hash for RangeJoin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.probe, &self.build, &self.spec).hash(state);
    }
}

impl PartialOrd for RangeJoin {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let parts = (&self.probe, &self.build, &self.spec);
        parts.partial_cmp(&(&other.probe, &other.build, &other.spec))
    }
}

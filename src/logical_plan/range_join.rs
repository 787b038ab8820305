//! The logical node of a range join by key.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, DFSchemaRef, Result, TableReference, internal_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use rmq_engine::Comparison;
use rmq_engine::Extreme;

/// For each row of the probe side, aggregates over the rows of the build side whose equality keys are the same and whose
/// range key lies within the row's bounds.
///
/// The output is the columns of the probe side, then one column an aggregate. Rows keep their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeJoin {
    probe: LogicalPlan,
    build: LogicalPlan,
    spec: RangeJoinSpec<Expr>,
    schema: DFSchemaRef,
}

/// What is joined how, in logical or physical expressions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RangeJoinSpec<E> {
    /// What becomes of a probe row that matches nothing.
    pub unmatched: Unmatched,
    /// Pairs of equality keys, of the probe side and of the build side.
    pub on: Vec<(E, E)>,
    /// The range key, of the build side.
    pub key: E,
    /// What the range key is compared with, of the probe side.
    pub bounds: Vec<(Comparison, E)>,
    /// Whether the row that prevails when the range begins matches too: the last one whose range key is at or before the one
    /// lower bound, unless a bound is NULL or the lower one is above an upper one.
    pub prevailing: bool,
    /// What is wanted of the rows that match.
    pub aggregates: Vec<RangeAggregate<E>>,
    /// The metadata of the schema, which plans above may know already: a join has that of both sides.
    pub metadata: BTreeMap<String, String>,
}

/// What becomes of a probe row that matches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum Unmatched {
    /// It is dropped, as by an inner join.
    Drop,
    /// It stays, as in a left join: counts are 0, all else is NULL.
    Keep,
}

/// One aggregate over the rows that match.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct RangeAggregate<E> {
    /// The question.
    pub function: AggregateKind,
    /// Its arguments, of the build side.
    pub arguments: Vec<E>,
    /// The name of the column that the answer becomes.
    pub output: String,
    /// The type of the answer.
    pub data_type: DataType,
}

/// What can be asked of the rows that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum AggregateKind {
    /// `(x)`: the smallest or greatest x.
    Extreme(Extreme),
    /// `()`: how many rows match.
    CountRows,
    /// `(x)`: how many x are not NULL.
    Count,
    /// `(x)`: the sum of x.
    Sum,
    /// `(x)`: what the sum of floats x lost when it was rounded. Asked of pieces, for their sums to be added without it being lost.
    SumLow,
    /// `(x)`: x of the first row by the range key, of several the first that came.
    First,
    /// `(x)`: x of the last row by the range key, of several the first that came.
    Last,
    /// `(x, v)`: x of the row with the smallest or greatest v; of several the first by the range key.
    AtExtreme {
        /// Which end of the order.
        extreme: Extreme,
        /// Whether a row whose v is NULL comes before all others instead of behind them.
        nulls_first: bool,
    },
}

impl<E> RangeAggregate<E> {
    /// The field of the answer.
    pub(crate) fn field(&self) -> Field {
        let counts = matches!(
            self.function,
            AggregateKind::CountRows | AggregateKind::Count
        );
        Field::new(&self.output, self.data_type.clone(), !counts)
    }
}

impl<E> RangeJoinSpec<E> {
    /// All expressions, in an order that [`Self::with_expressions`] knows.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &E> {
        let on = self.on.iter().flat_map(|(probe, build)| [probe, build]);
        let bounds = self.bounds.iter().map(|(_, bound)| bound);
        let arguments = self.aggregates.iter().flat_map(|a| &a.arguments);
        on.chain(std::iter::once(&self.key))
            .chain(bounds)
            .chain(arguments)
    }

    /// Those over the probe side.
    pub(crate) fn probe_expressions(&self) -> impl Iterator<Item = &E> {
        let on = self.on.iter().map(|(probe, _)| probe);
        on.chain(self.bounds.iter().map(|(_, bound)| bound))
    }

    /// Those over the build side.
    pub(crate) fn build_expressions(&self) -> impl Iterator<Item = &E> {
        let on = self.on.iter().map(|(_, build)| build);
        let arguments = self.aggregates.iter().flat_map(|a| &a.arguments);
        on.chain(std::iter::once(&self.key)).chain(arguments)
    }

    /// The same join of other expressions: `probe` and `build` make them of these.
    pub(crate) fn try_map<T>(
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
            })
        });
        Ok(RangeJoinSpec {
            unmatched: self.unmatched,
            on: on.collect::<Result<_>>()?,
            key: build(&self.key)?,
            bounds: bounds.collect::<Result<_>>()?,
            prevailing: self.prevailing,
            aggregates: aggregates.collect::<Result<_>>()?,
            metadata: self.metadata.clone(),
        })
    }

    /// The same join, its expressions replaced in the order of [`Self::expressions`].
    fn with_expressions(mut self, expressions: Vec<E>) -> Result<Self> {
        if expressions.len() != self.expressions().count() {
            return internal_err!(
                "a range join has other expressions than {}",
                expressions.len()
            );
        }
        let on = self.on.iter_mut().flat_map(|(probe, build)| [probe, build]);
        let bounds = self.bounds.iter_mut().map(|(_, bound)| bound);
        let arguments = self.aggregates.iter_mut().flat_map(|a| &mut a.arguments);
        let places = on
            .chain(std::iter::once(&mut self.key))
            .chain(bounds)
            .chain(arguments);
        for (place, expression) in places.zip(expressions) {
            *place = expression;
        }
        Ok(self)
    }
}

impl RangeJoin {
    /// # Errors
    /// If an output's name is already a column of the probe side.
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

    /// The columns of the probe side, and one column an aggregate.
    ///
    /// # Errors
    /// As [`Self::try_new`].
    pub(crate) fn schema_of(probe: &DFSchema, spec: &RangeJoinSpec<Expr>) -> Result<DFSchema> {
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

    /// The build side without the filter that DataFusion puts upon all inputs where one above has no columns, such as `random() < 0.5`: that
    /// one is about the rows of the result, which are those of the probe side.
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

    /// What is joined how.
    pub(crate) fn spec(&self) -> &RangeJoinSpec<Expr> {
        &self.spec
    }
}

/// `type=Left, on=[sym], range=p.ts in [q.a, q.b), aggs=[min(p.close), count(*)]`.
impl Display for RangeJoinSpec<Expr> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.unmatched {
            Unmatched::Drop => "Inner",
            Unmatched::Keep => "Left",
        };
        write!(f, "type={kind}")?;
        if !self.on.is_empty() {
            let on = self.on.iter().map(|(probe, build)| match (probe, build) {
                (Expr::Column(p), Expr::Column(b)) if p.name == b.name => p.name.clone(),
                (probe, build) => format!("{build} = {probe}"),
            });
            write!(f, ", on=[{}]", on.collect::<Vec<_>>().join(", "))?;
        }
        write!(f, ", range={} in {}", self.key, Interval(&self.bounds))?;
        if self.prevailing {
            f.write_str(" include prevailing")?;
        }
        let aggregates = self.aggregates.iter().map(ToString::to_string);
        write!(f, ", aggs=[{}]", aggregates.collect::<Vec<_>>().join(", "))
    }
}

/// Bounds as an interval: `[q.a, q.b)`; several on a side have the tightest.
struct Interval<'a>(&'a [(Comparison, Expr)]);

impl Display for Interval<'_> {
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
        match (self.function, self.arguments.as_slice()) {
            (AggregateKind::Extreme(extreme), [x]) => write!(f, "{}({x})", extreme.name()),
            (AggregateKind::Count, [x]) => write!(f, "count({x})"),
            (AggregateKind::Sum, [x]) => write!(f, "sum({x})"),
            (AggregateKind::SumLow, [x]) => write!(f, "sum_rest({x})"),
            (AggregateKind::First, [x]) => write!(f, "first({x})"),
            (AggregateKind::Last, [x]) => write!(f, "last({x})"),
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
            _ => write!(f, "count(*)"),
        }
    }
}

impl UserDefinedLogicalNodeCore for RangeJoin {
    fn name(&self) -> &'static str {
        "RangeJoin"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.probe, &self.build]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.spec.expressions().cloned().collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeJoin: {}", self.spec)
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let [probe, build] = <[LogicalPlan; 2]>::try_from(inputs)
            .or_else(|inputs| internal_err!("RangeJoin has two inputs, not {}", inputs.len()))?;
        let build = self.unfiltered(build);
        // Rules give an expression that they change its old name; here names mean nothing.
        let exprs = exprs.into_iter().map(Expr::unalias).collect();
        Self::try_new(probe, build, self.spec.clone().with_expressions(exprs)?)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let places = |exprs: &mut dyn Iterator<Item = &Expr>, plan: &LogicalPlan| {
            exprs
                .flat_map(Expr::column_refs)
                .map(|column| plan.schema().maybe_index_of_column(column))
                .collect::<Option<BTreeSet<usize>>>()
        };
        let mut probe = places(&mut self.spec.probe_expressions(), &self.probe)?;
        let columns = self.probe.schema().fields().len();
        probe.extend(output_columns.iter().filter(|place| **place < columns));
        let build = places(&mut self.spec.build_expressions(), &self.build)?;
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

//! Puts the functions, rules, planner and options into a session.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::catalog::{
    CatalogProviderList, MemoryCatalogProviderList, TableFunction, TableFunctionImpl,
};
use datafusion::common::{DFSchema, Result, config_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::functions::math;
use datafusion::logical_expr::{
    AggregateUDF, AggregateUDFImpl as _, Expr, ScalarUDF, UserDefinedLogicalNode, WindowUDF,
};
use datafusion::optimizer::{AnalyzerRule, Optimizer, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_planner::ExtensionPlanner;
use datafusion::prelude::SessionContext;
use datafusion_dependent_join::{
    OuterColumnTypes, SubqueriesToDependentJoins, SubqueriesToLateralJoins, UnnestDependentJoins,
    single_row_udf,
};

use crate::kept::catalog::{IndexCatalog, SessionCatalog, SharedIndexes};
use crate::kept::table_version::VersionedTable;
use crate::optimizer::physical::guarded_rule::GuardedRule;
use crate::optimizer::physical::joins_to_range_joins::JoinToRangeJoin;
use crate::optimizer::physical::outer_constants::HideOuterConstants;
use crate::optimizer::physical::partition_joins::{KeepUndividedJoins, PartitionRangeJoins};
use crate::optimizer::physical::row_order::{KeepRowOrder, ShowRowOrder};
use crate::optimizer::physical::unique_groups::UseUniqueGroups;
use crate::optimizer::physical::window_frames::WindowsToFrames;
use crate::planner::asof_join::AsofJoinPlanner;
use crate::planner::memory_limit::giving;
use crate::planner::query_planner::RmqQueryPlanner;
use crate::planner::registration::Registration;
use crate::table_functions::range_join::RangeJoinFunction;
use crate::table_functions::range_min::RangeTableFunction;
use crate::table_functions::rmq_devices::DevicesFunction;
use crate::table_functions::rmq_indexes::IndexesFunction;
use datafusion_rmq_logical::common::column_ref::Names;
use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::conditions::infallible::is_infallible;
use datafusion_rmq_logical::expr::abs::AbsUdf;
use datafusion_rmq_logical::expr::arg_extreme::ArgExtremeUdf;
use datafusion_rmq_logical::expr::distance::DistanceUdf;
use datafusion_rmq_logical::expr::first_last::{FirstLastPlanner, FirstLastUdf};
use datafusion_rmq_logical::expr::frame_udf::{FrameBounds, FrameUdf};
use datafusion_rmq_logical::expr::interval_product::IntervalProductPlanner;
use datafusion_rmq_logical::expr::range_calls::range_udf;
use datafusion_rmq_logical::expr::range_udf::RangeUdf;
use datafusion_rmq_logical::expr::shifted_bound::ShiftedBoundUdf;
use datafusion_rmq_logical::logical_plan::nearest_rows::NearestRows;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoin;
use datafusion_rmq_logical::rules::anti_left_join::OuterJoinToAntiJoin;
use datafusion_rmq_logical::rules::arg_extreme::{ArgExtremesToFirstValues, is_arg_extreme};
use datafusion_rmq_logical::rules::filtered_frames::FiltersOfFramesToCases;
use datafusion_rmq_logical::rules::first_rows::FirstRowsToNearestRows;
use datafusion_rmq_logical::rules::grouped_join::{
    DistinctGroupedJoinToRangeJoin, GroupedJoinToRangeJoin,
};
use datafusion_rmq_logical::rules::interval_bounds::{IntervalProductsToBounds, is_product};
use datafusion_rmq_logical::rules::lateral::{LateralToRangeJoin, is_range_join};
use datafusion_rmq_logical::rules::long_lists::LongListsToTables;
use datafusion_rmq_logical::rules::memberships::ExistsToCounts;
use datafusion_rmq_logical::rules::needed_rules::{NeededRules, is_of_subquery};
use datafusion_rmq_logical::rules::nested_subquery::NestedSubqueriesToColumns;
use datafusion_rmq_logical::rules::no_later_row::LaterRowsToLastKeys;
use datafusion_rmq_logical::rules::nullable_subquery::NullableSubqueries;
use datafusion_rmq_logical::rules::order_by_distance::{OrderByDistances, may_be_distance};
use datafusion_rmq_logical::rules::range_call::frame_call::{
    CheckFrameCalls, is_range_or_frame_call,
};
use datafusion_rmq_logical::rules::range_call::scalar_call::RangeCallToLookup;
use datafusion_rmq_logical::rules::renewed_schemas::RenewSchemas;
use datafusion_rmq_logical::rules::time_differences::{TimeDifferences, may_be_of_duration};
use datafusion_rmq_logical::rules::unmixed_joins::UnmixedJoins;
use datafusion_rmq_logical::rules::unused_aggregates::DropUnusedAggregates;
use datafusion_rmq_logical::rules::when_rewriting::WhenRewriting;
use datafusion_rmq_logical::rules::zoned_sums::{ZonedSums, may_be_zoned_sum};
use rmq_arrow::common::range_function::RangeFunction;
use rmq_engine::Extreme;

/// Registers range queries with a session that is being built.
///
/// Call one of these after the configuration, the runtime environment, the catalog list and the optimizers' rules have
/// been set, if they are set at all. The session gets a runtime environment of its own if its memory pool has a limit:
/// the same one, but for the pool, in which indexes that are kept give way to any operator that lacks memory.
pub trait SessionStateBuilderExt {
    /// Adds the functions `range_min`, `frame_min` and the others of their families, the aggregates `arg_min` and
    /// `arg_max`, the names `first` and `last` of `first_value` and `last_value`, an `abs` that takes durations, too,
    /// `rmq_distance` and `rmq_bound`, products of intervals and numbers, the table functions `range_join()`,
    /// `rmq_indexes()` and `rmq_devices()`, the options `rmq.*`, the optimizer rules and the query planner.
    ///
    /// It replaces the session's query planner. A session with extension nodes of its own uses
    /// [`Self::with_rmq_and_planners`], one with a query planner of its own [`Self::with_rmq_keeping_query_planner`].
    #[must_use]
    fn with_rmq(self) -> Self;

    /// As [`Self::with_rmq`], with indexes that other sessions of the process share.
    #[must_use]
    fn with_rmq_sharing(self, indexes: &SharedIndexes) -> Self;

    /// As [`Self::with_rmq`], with further extension planners, which are tried before those of this crate.
    #[must_use]
    fn with_rmq_and_planners(self, planners: Vec<Arc<dyn ExtensionPlanner + Send + Sync>>) -> Self;

    /// As [`Self::with_rmq`], but keeps the session's query planner, which must plan each query with
    /// [`plan`](crate::planner::query_planning::plan).
    #[must_use]
    fn with_rmq_keeping_query_planner(self) -> Self;
}

impl SessionStateBuilderExt for SessionStateBuilder {
    fn with_rmq(self) -> Self {
        self.with_rmq_and_planners(vec![])
    }

    fn with_rmq_sharing(self, indexes: &SharedIndexes) -> Self {
        register_in(self, Planner::Replace(vec![]), Arc::clone(&indexes.0))
    }

    fn with_rmq_and_planners(self, planners: Vec<Arc<dyn ExtensionPlanner + Send + Sync>>) -> Self {
        register_in(self, Planner::Replace(planners), Arc::default())
    }

    fn with_rmq_keeping_query_planner(self) -> Self {
        register_in(self, Planner::Keep, Arc::default())
    }
}

/// The query planner of a session in which range queries are registered.
enum Planner {
    /// The session's own.
    Keep,
    /// The one of this crate, with these extension planners.
    Replace(Vec<Arc<dyn ExtensionPlanner + Send + Sync>>),
}

fn register_in(
    mut builder: SessionStateBuilder,
    planner: Planner,
    indexes: Arc<IndexCatalog>,
) -> SessionStateBuilder {
    let mut config = builder.config().take().unwrap_or_default();
    let options = RmqOptions::of(config.options());
    let follower = Arc::downgrade(&indexes);
    config = config.with_option_extension(options.followed_by(follower));
    let runtime = builder.runtime_env().get_or_insert_default();
    if let Some(giving) = giving(runtime, &indexes) {
        *runtime = giving;
    }
    let catalogs: Arc<dyn CatalogProviderList> = builder
        .catalog_list()
        .get_or_insert_with(|| Arc::new(MemoryCatalogProviderList::new()))
        .clone();
    let names = Names::new(&catalogs, config.options());
    let registration = Registration {
        names: names.clone(),
        indexes: Arc::clone(&indexes),
    };
    let config = registration.add_to(config);
    add_functions(&mut builder, &names);
    add_table_functions(&mut builder, names, indexes);

    let exprs = builder.expr_planners().get_or_insert_default();
    exprs.insert(0, Arc::new(IntervalProductPlanner));
    exprs.insert(0, Arc::new(FirstLastPlanner));

    let relations = builder.relation_planners().get_or_insert_default();
    // Once more after an earlier call, which is harmless.
    relations.push(Arc::new(AsofJoinPlanner));

    let optimizer = builder.optimizer().take().unwrap_or_default();
    let physical = builder.physical_optimizers().take().unwrap_or_default();
    let mut analyzer = builder.analyzer().take().unwrap_or_default();
    add_analyzer_rules(&mut analyzer.rules);
    *builder.analyzer() = Some(analyzer);
    let builder = builder
        .with_config(config)
        .with_optimizer_rules(with_rules(optimizer, &planner).rules)
        .with_physical_optimizer_rules(with_physical_rules(physical).rules);
    match planner {
        Planner::Keep => builder,
        Planner::Replace(others) => {
            builder.with_query_planner(Arc::new(RmqQueryPlanner::new(registration, others)))
        }
    }
}

/// Adds scalar, window and aggregate functions.
fn add_functions(builder: &mut SessionStateBuilder, names: &Names) {
    let ranges = RangeFunction::ALL.map(|f| RangeUdf::new(f, names.clone()));
    let scalars = builder.scalar_functions().get_or_insert_default();
    scalars.extend(ranges.map(|udf| Arc::new(ScalarUDF::from(udf))));
    scalars.push(Arc::new(ScalarUDF::from(DistanceUdf::new())));
    scalars.push(Arc::new(ScalarUDF::from(ShiftedBoundUdf::new())));
    scalars.push(single_row_udf());
    let mut known = scalars.iter().rev();
    let known = known.find(|f| all_names(f.name(), f.aliases()).contains(&"abs".to_string()));
    // Another one than DataFusion's stays, such as Spark's, which wraps around.
    if known.is_none_or(|abs| **abs == *math::abs() || abs.inner().is::<AbsUdf>()) {
        scalars.push(Arc::new(ScalarUDF::from(AbsUdf::new())));
    }
    let windows = builder.window_functions().get_or_insert_default();
    for bounds in [FrameBounds::Positions, FrameBounds::Keys] {
        let frames = RangeFunction::ALL.map(|function| FrameUdf::new(function, bounds));
        windows.extend(frames.map(|udf| Arc::new(WindowUDF::from(udf))));
    }

    let aggregates = builder.aggregate_functions().get_or_insert_default();
    let arg_extremes = ArgExtremeUdf::EXTREMES.map(ArgExtremeUdf::new);
    aggregates.extend(arg_extremes.map(|udf| Arc::new(AggregateUDF::from(udf))));
    for name in FirstLastUdf::all() {
        // A session may have its own.
        let is_known = |known: &Arc<AggregateUDF>| {
            all_names(known.name(), known.aliases()).contains(&name.name().to_string())
        };
        if !aggregates.iter().any(is_known) {
            aggregates.push(Arc::new(AggregateUDF::from(name)));
        }
    }
}

fn add_table_functions(
    builder: &mut SessionStateBuilder,
    names: Names,
    indexes: Arc<IndexCatalog>,
) {
    let tables = builder.table_functions().get_or_insert_default();
    let extremes = [Extreme::Min, Extreme::Max].map(|e| RangeTableFunction::new(e, names.clone()));
    let mut functions = extremes
        .map(|f| (f.name().to_string(), Arc::new(f) as _))
        .to_vec();
    functions.extend::<[(String, Arc<dyn TableFunctionImpl>); 3]>([
        (
            RangeJoinFunction::NAME.to_string(),
            Arc::new(RangeJoinFunction::new(names)),
        ),
        (
            IndexesFunction::NAME.to_string(),
            Arc::new(IndexesFunction::new(Arc::clone(&indexes))),
        ),
        (
            DevicesFunction::NAME.to_string(),
            Arc::new(DevicesFunction::new(indexes)),
        ),
    ]);
    tables.extend(functions.into_iter().map(|(name, function)| {
        let function = TableFunction::new(name.clone(), function);
        (name, Arc::new(function))
    }));
}

/// Where rules go among those of `DataFusion`.
enum Position<'a> {
    Start,
    Before(&'a str),
    After(&'a str),
    End,
}

/// Adds the analyzer's rules, each once, whether or not an earlier call has registered them.
fn add_analyzer_rules(rules: &mut Vec<Arc<dyn AnalyzerRule + Send + Sync>>) {
    let ours = NeededRules::new(vec![
        (may_be_of_duration, Arc::new(TimeDifferences)),
        (may_be_zoned_sum, Arc::new(ZonedSums)),
        (is_range_or_frame_call, Arc::new(CheckFrameCalls)),
        (is_arg_extreme, Arc::new(ArgExtremesToFirstValues)),
        (is_product, Arc::new(IntervalProductsToBounds)),
        (is_of_subquery, Arc::new(NullableSubqueries)),
        (may_be_distance, Arc::new(OrderByDistances)),
        // The last, as it looks at what the others leave.
        (
            is_of_subquery,
            Arc::new(WhenRewriting(SubqueriesToDependentJoins {
                keeps: |e| range_udf(e).is_some(),
                // `NullableSubqueries` mends them where they are, so that several share a range join.
                keeps_not_null: true,
            })),
        ),
    ]);
    let types = WhenRewriting(OuterColumnTypes);
    let names = [ours.name(), types.name()];
    rules.retain(|rule| !names.contains(&rule.name()));
    let coercion = rules.iter().position(|rule| rule.name() == "type_coercion");
    rules.insert(coercion.unwrap_or(0), Arc::new(types));
    rules.push(Arc::new(ours));
}

/// Adds the rules for logical plans.
fn with_rules(mut optimizer: Optimizer, planner: &Planner) -> Optimizer {
    use Position::{After, Before, End, Start};
    type Rules = Vec<Arc<dyn OptimizerRule + Send + Sync>>;
    let long_lists: Rules = match planner {
        Planner::Replace(_) => vec![Arc::new(LongListsToTables)],
        Planner::Keep => vec![],
    };
    // Range functions are declared to be volatile, so that no rule folds them.
    let repeats = |e: &Expr| range_udf(e).is_some();
    let cannot_fail = |e: &Expr, columns: &DFSchema| is_infallible(e, columns);
    let extends = |node: &dyn UserDefinedLogicalNode| {
        node.as_any().is::<RangeJoin>() || node.as_any().is::<NearestRows>()
    };
    let repeats_rows = |node: &dyn UserDefinedLogicalNode| {
        let join = node.as_any().downcast_ref::<RangeJoin>();
        join.is_some_and(RangeJoin::repeats_rows)
    };
    let ours: Vec<(Position, Rules)> = vec![
        (Before("simplify_expressions"), long_lists),
        (
            Start,
            vec![
                // First, because other rules fold literal bounds and drop an ORDER BY in a first argument.
                Arc::new(RangeCallToLookup),
                Arc::new(IntervalProductsToBounds),
                // Before all rules for subqueries, which know the next query around one only.
                Arc::new(NestedSubqueriesToColumns),
                // Before DataFusion's rules for correlated subqueries, which reject correlation by a range or leave it
                // to fail.
                Arc::new(LaterRowsToLastKeys),
                Arc::new(ExistsToCounts),
                // Those that DataFusion rejects or answers wrongly.
                Arc::new(WhenRewriting(SubqueriesToLateralJoins {
                    repeats,
                    cannot_fail,
                    is_joined: is_range_join,
                })),
                Arc::new(LateralToRangeJoin),
                Arc::new(WhenRewriting(UnnestDependentJoins {
                    repeats,
                    cannot_fail,
                    extends,
                    repeats_rows,
                })),
                Arc::new(FirstRowsToNearestRows),
                Arc::new(FiltersOfFramesToCases),
            ],
        ),
        (
            After("decorrelate_lateral_join"),
            vec![Arc::new(RenewSchemas)],
        ),
        (
            // Before DataFusion's rule for outer joins, which takes a condition that is NULL on one side to the other.
            Before("push_down_filter"),
            vec![Arc::new(OuterJoinToAntiJoin)],
        ),
        (
            // Again for conditions that this rule has pushed to an outer join.
            Before("single_distinct_aggregation_to_group_by"),
            vec![
                Arc::new(OuterJoinToAntiJoin),
                Arc::new(DistinctGroupedJoinToRangeJoin),
            ],
        ),
        (
            End,
            vec![
                // For calls whose bounds were columns of an outer query before decorrelation.
                Arc::new(RangeCallToLookup),
                Arc::new(GroupedJoinToRangeJoin),
                // After DataFusion has dropped columns that nothing reads.
                Arc::new(DropUnusedAggregates),
            ],
        ),
    ];
    insert(&mut optimizer.rules, ours, |rule| rule.name());
    let rules = optimizer.rules.into_iter();
    optimizer.rules = rules.map(UnmixedJoins::around).collect();
    optimizer
}

/// Adds the rules for physical plans.
fn with_physical_rules(mut optimizer: PhysicalOptimizer) -> PhysicalOptimizer {
    type Rules = Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>;
    let repartition = EnsureRequirements::new();
    let ours: Vec<(Position, Rules)> = vec![
        (
            Position::Before(repartition.name()),
            vec![
                Arc::new(HideOuterConstants),
                Arc::new(JoinToRangeJoin),
                Arc::new(KeepRowOrder),
                Arc::new(PartitionRangeJoins),
            ],
        ),
        (
            Position::After(repartition.name()),
            vec![Arc::new(ShowRowOrder), Arc::new(KeepUndividedJoins)],
        ),
        (
            Position::End,
            vec![Arc::new(WindowsToFrames), Arc::new(UseUniqueGroups)],
        ),
    ];
    insert(&mut optimizer.rules, ours, |rule| rule.name());
    optimizer.rules = optimizer
        .rules
        .into_iter()
        .map(GuardedRule::around)
        .collect();
    optimizer
}

/// The text of an error without the lines that say which of our rules for logical plans it comes from: the sentence
/// after them says what is refused.
#[must_use]
pub fn without_rule_names(error: &str) -> String {
    if !error.contains("\ncaused by\n") {
        return error.to_string();
    }
    let others = Optimizer::new();
    let is_other = |name: &str| others.rules.iter().any(|rule| rule.name() == name);
    let rules = with_rules(Optimizer::new(), &Planner::Replace(vec![])).rules;
    let mut text = error.to_string();
    for rule in rules.iter().filter(|rule| !is_other(rule.name())) {
        let line = format!("Optimizer rule '{}' failed\ncaused by\n", rule.name());
        text = text.replace(&line, "");
    }
    let mut rules = vec![];
    add_analyzer_rules(&mut rules);
    for rule in rules {
        text = text.replace(&format!("{}\ncaused by\n", rule.name()), "");
    }
    text
}

/// Inserts our rules, each once, whether or not an earlier call has registered them. Those whose place is beside a rule
/// that is missing are left out, which the log says: plain SQL is then slower, never wrong.
fn insert<R: ?Sized>(
    rules: &mut Vec<Arc<R>>,
    ours: Vec<(Position, Vec<Arc<R>>)>,
    name: fn(&R) -> &str,
) {
    let known: HashSet<String> = ours
        .iter()
        .flat_map(|(_, ours)| ours.iter().map(|rule| name(rule).to_string()))
        .collect();
    rules.retain(|rule| !known.contains(name(rule)));
    for (position, ours) in ours {
        let find = |other: &str| {
            let found = rules.iter().position(|rule| name(rule) == other);
            found.ok_or_else(|| other.to_string())
        };
        let index = match position {
            Position::Start => Ok(0),
            Position::Before(other) => find(other),
            Position::After(other) => find(other).map(|index| index + 1),
            Position::End => Ok(rules.len()),
        };
        match index {
            Ok(index) => drop(rules.splice(index..index, ours)),
            Err(other) => {
                let ours: Vec<&str> = ours.iter().map(|rule| name(rule)).collect();
                let ours = ours.join(", ");
                log::warn!(
                    "the session has no optimizer rule {other}, so these find no place: {ours}"
                );
            }
        }
    }
}

/// Registers range queries with an existing session, as [`SessionStateBuilderExt::with_rmq`] does with one that is
/// being built.
///
/// It replaces the session's query planner. A session with extension nodes of its own uses
/// [`SessionStateBuilderExt::with_rmq_and_planners`], one with a query planner of its own
/// [`register_keeping_query_planner`]. Registering twice is harmless but drops the cached indexes.
///
/// ```
/// # use datafusion::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let ctx = SessionContext::new();
/// datafusion_rmq::register(&ctx);
/// ctx.sql("CREATE TABLE t AS VALUES (3), (1), (2)").await?.collect().await?;
/// let rows = ctx.sql("SELECT range_min('t.column1', 1, 2) AS m").await?.collect().await?;
/// assert_eq!(rows[0].num_rows(), 1);
/// # Ok(()) }
/// ```
pub fn register(ctx: &SessionContext) {
    register_with(ctx, Planner::Replace(vec![]), Arc::default());
}

/// Registers range queries with an existing session, but keeps its query planner, which must plan each query with
/// [`plan`](crate::planner::query_planning::plan).
pub fn register_keeping_query_planner(ctx: &SessionContext) {
    register_with(ctx, Planner::Keep, Arc::default());
}

/// Has a session keep indexes of tables of this type while these have the version that they state. Called after
/// [`register`] or what stands for it.
///
/// # Errors
/// A configuration error if the session has no range queries.
pub fn register_versioned<T: VersionedTable>(ctx: &SessionContext) -> Result<()> {
    let state = ctx.state_ref();
    let state = state.read();
    let Some(indexes) = SessionCatalog::of(state.config()) else {
        return config_err!(
            "register_versioned::<{}> needs a session with range queries: call datafusion_rmq::register first",
            std::any::type_name::<T>()
        );
    };
    indexes.versioned().add::<T>();
    Ok(())
}

/// Registers range queries with other devices than those of this machine, for tests. Not part of the stable interface.
/// No feature hides it, because the library would be compiled once with the feature and once without.
#[doc(hidden)]
pub fn register_with_devices(
    ctx: &SessionContext,
    devices: Arc<dyn rmq_arrow::index::devices::DeviceSource>,
) {
    let indexes = Arc::new(IndexCatalog::new(devices));
    register_with(ctx, Planner::Replace(vec![]), indexes);
}

fn register_with(ctx: &SessionContext, planner: Planner, indexes: Arc<IndexCatalog>) {
    let state_ref = ctx.state_ref();
    let mut state = state_ref.write();
    let mut builder = SessionStateBuilder::new_from_existing(state.clone())
        .with_session_id(state.session_id().to_string());
    overridden_first(builder.scalar_functions(), state.scalar_functions(), |f| {
        all_names(f.name(), f.aliases())
    });
    overridden_first(
        builder.aggregate_functions(),
        state.aggregate_functions(),
        |f| all_names(f.name(), f.aliases()),
    );
    overridden_first(builder.window_functions(), state.window_functions(), |f| {
        all_names(f.name(), f.aliases())
    });
    if matches!(planner, Planner::Replace(_)) {
        warn_of_lost_planner(state.query_planner().as_ref());
    }
    *state = register_in(builder, planner, indexes).build();
}

/// Says that another planner than DataFusion's and ours is replaced, such as one that divides plans among machines.
fn warn_of_lost_planner(planner: &(dyn QueryPlanner + Send + Sync)) {
    // DataFusion's own is not public.
    let name = format!("{planner:?}");
    let is_known = ["DefaultQueryPlanner", "RmqQueryPlanner"];
    if !is_known.iter().any(|known| name.starts_with(known)) {
        let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
        log::warn!(
            "datafusion_rmq::register replaces the query planner {name} of the session: register before it is set, or keep it \
             with register_keeping_query_planner"
        );
    }
}

fn all_names(name: &str, aliases: &[String]) -> Vec<String> {
    aliases.iter().cloned().chain([name.to_string()]).collect()
}

/// Puts functions first that have lost one of their names to another function. A state returns its functions in no
/// order, and when they are registered again, the last one with a name gets it.
fn overridden_first<F>(
    functions: &mut Option<Vec<Arc<F>>>,
    known: &HashMap<String, Arc<F>>,
    names: impl Fn(&F) -> Vec<String>,
) {
    let has_all_names = |function: &Arc<F>| {
        let mut names = names(function).into_iter();
        names.all(|name| known.get(&name).is_some_and(|f| Arc::ptr_eq(f, function)))
    };
    if let Some(functions) = functions {
        functions.sort_by_cached_key(has_all_names);
    }
}

//! From logical nodes to operators: an extension planner for each kind of node, the steps of planning one query
//! (`query_planning`), and the query planner that a session gets unless it keeps its own. `dml_checks` refuses DELETE
//! and UPDATE statements that DataFusion would run wrongly. `kept_scans` tells which version of a table a scan returns,
//! and shares scans of tables in memory. `asof_join` plans ASOF JOIN, which DataFusion does not, and `using_columns`
//! what its USING names. `create_index` plans CREATE INDEX, whose names are tables of `index_schema`. `statement`
//! prepares parsed statements, for ASOF JOIN, against OVER where it has no meaning (`over_clause`) and TABLESAMPLE
//! (`table_sample`), with names for subqueries that would have another column's (`subquery_names`) and for outer
//! columns (`outer_names`), which arrays may have (`array_literals`), with the clauses of windows that others begin
//! with (`base_windows`), with the side of semi joins (`semi_joins`), with EXISTS for rows of several columns in a
//! subquery (`row_memberships`), and with types of parameters (`parameter_types`), as far as the statement has such
//! parts (`statement_parts`). `hints` says what to write where DataFusion's errors don't. `memory_limit` has indexes
//! give way in the session's memory pool.

pub(crate) mod array_literals;
pub(crate) mod asof_join;
pub(crate) mod asof_outer;
pub(crate) mod base_windows;
pub(crate) mod create_index;
pub(crate) mod dml_checks;
pub(crate) mod hints;
pub(crate) mod index_schema;
pub(crate) mod index_statement;
pub(crate) mod join_choices;
pub(crate) mod kept_scans;
pub(crate) mod match_conditions;
pub(crate) mod memory_limit;
pub(crate) mod nearest_join;
pub(crate) mod nearest_rows_planner;
pub(crate) mod outer_names;
pub(crate) mod over_clause;
pub(crate) mod parameter_types;
pub(crate) mod precedence;
pub(crate) mod query_planner;
pub(crate) mod query_planning;
pub(crate) mod range_join_planner;
pub(crate) mod range_lookup_planner;
pub(crate) mod registration;
pub(crate) mod row_memberships;
pub(crate) mod semi_joins;
pub(crate) mod statement;
pub(crate) mod statement_parts;
pub(crate) mod subquery_names;
pub(crate) mod table_sample;
pub(crate) mod tokens;
pub(crate) mod using_columns;

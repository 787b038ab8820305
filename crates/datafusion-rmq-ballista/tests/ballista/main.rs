//! Queries on a scheduler and executors of this process, compared with the same queries on one node.
//!
//! Each of these was taken out of the sources once, and the test named has failed:
//!
//! | | |
//! |---|---|
//! | `without_left_rows` | `executors_return_what_one_node_returns`, `plain_queries_are_sent` |
//! | what `check` refuses: ORDER BY with LIMIT, FULL JOIN, NOT IN | `queries_that_ballista_would_change_are_refused` |
//! | `check_all_windows` | the same |
//! | `sorted_after_exchanges` | `orders_that_exchanges_keep_are_kept` |
//! | `SessionRole::DividesPlans` | `plain_queries_are_sent`, `sides_without_the_codec_are_errors`, random queries |
//! | `reads_files`, the limit of messages | `tables_in_memory_stay_with_the_client` |
//! | the options of executors (`scheduler_session`) | `options_are_those_of_executors` |
//! | `SessionRole::RunsTasks` | `tasks_read_what_their_windows_reach` |
//! | the cancellation of jobs | `a_cancelled_query_leaves_nothing_on_executors` |
//! | the codec of schedulers and executors | `sides_without_the_codec_are_errors` |

mod answers;
mod faults;
#[path = "../../../datafusion-rmq-proto/tests/codec/files.rs"]
mod files;
#[path = "../../../datafusion-rmq-proto/tests/codec/queries.rs"]
mod queries;
mod random;
#[path = "../../../datafusion-rmq-distributed/tests/cluster/sliced_tables.rs"]
mod sliced_tables;
mod slices;
mod sql_files;
mod support;

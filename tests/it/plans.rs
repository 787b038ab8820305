//! Snapshots of plans: which queries become range joins, and how EXPLAIN shows them.
//!
//! After an intended change, `cargo insta accept` updates this file; review the diff.

use datafusion::physical_plan::displayable;
use datafusion::prelude::{SessionConfig, SessionContext};
use insta::assert_snapshot;

use crate::support::run;

/// A session in which plans do not depend on the machine.
async fn session() -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(2)
        .with_batch_size(8192);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    for sql in [
        "SET rmq.engine = 'cpu'",
        "CREATE TABLE quotes AS SELECT * FROM (VALUES ('a', 1, 2.5, 10), ('b', 2, 3.5, 20)) AS v(sym, ts, price, size)",
        "CREATE TABLE trades AS SELECT * FROM (VALUES (1, 'a', 2), (2, 'b', 3)) AS v(id, sym, ts)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    ctx
}

/// The optimized logical plan, and the physical one.
async fn plans(sql: &str) -> String {
    let ctx = session().await;
    let frame = ctx.sql(sql).await.expect(sql);
    let (state, plan) = frame.into_parts();
    let logical = state.optimize(&plan).expect(sql);
    let physical = state.create_physical_plan(&plan).await.expect(sql);
    let physical = displayable(physical.as_ref()).indent(false);
    format!("{}\n--\n{physical}", logical.display_indent())
}

#[tokio::test]
async fn an_inner_join_with_group_by() {
    let sql = "SELECT t.id, min(q.price) FROM trades t JOIN quotes q ON q.sym = t.sym AND q.ts BETWEEN t.ts - 1 AND t.ts GROUP BY t.id";
    assert_snapshot!(plans(sql).await, @r#"
    JoinChoice: a range join, or a hash join where few rows have equal keys
      Projection: t.id AS id, min(q.price)#2 AS min(q.price)
        Aggregate: groupBy=[[t.id]], aggr=[[total_min(min(q.price)#1) AS min(q.price)#2]]
          Projection: t.id, min(q.price)#1
            RangeJoin: type=Inner, on=[sym], range=q.ts in [t.ts - 1, t.ts], aggs=[min(q.price)]
              SubqueryAlias: t
                TableScan: trades projection=[id, sym, ts]
              SubqueryAlias: q
                TableScan: quotes projection=[sym, ts, price]
    --
    ProjectionExec: expr=[id@0 as id, min(q.price)#4@1 as min(q.price)]
      UniqueGroupsExec: keys=[id]
        AggregateExec: mode=FinalPartitioned, gby=[id@0 as id], aggr=[total_min(min(q.price)#3) as min(q.price)#4]
          RepartitionExec: partitioning=Hash([id@0], 2), input_partitions=2
            AggregateExec: mode=Partial, gby=[id@0 as id], aggr=[total_min(min(q.price)#3) as min(q.price)#4]
              ReplayExec
                RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
                  ProjectionExec: expr=[id@0 as id, min(q.price)#3@3 as min(q.price)#3]
                    RangeJoinExec: type=Inner, on=[sym], range=q.ts in [t.ts - 1, t.ts], aggs=[min(q.price)], engine=cpu
                      DataSourceExec: partitions=1, partition_sizes=[1]
                      DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn a_left_join_with_group_by() {
    let sql = "SELECT t.id, t.sym, count(*), sum(q.size), max(q.size) FROM trades t LEFT JOIN quotes q ON q.ts >= t.ts AND q.ts < t.ts + 5 \
               GROUP BY t.id, t.sym";
    assert_snapshot!(plans(sql).await, @r#"
    Projection: t.id, t.sym, CASE WHEN count(*)#2 IS NOT NULL THEN count(*)#2 ELSE Int64(0) END AS count(*), sum(q.size)#4 AS sum(q.size), max(q.size)#6 AS max(q.size)
      Aggregate: groupBy=[[t.id, t.sym]], aggr=[[sum(CASE WHEN count(*)#1 = Int64(0) THEN Int64(1) ELSE count(*)#1 END) AS count(*)#2, sum(sum(q.size)#3) AS sum(q.size)#4, max(max(q.size)#5) AS max(q.size)#6]]
        Projection: t.id, t.sym, count(*)#1, sum(q.size)#3, max(q.size)#5
          RangeJoin: type=Left, range=q.ts in [t.ts, t.ts + 5), aggs=[count(*), sum(q.size), max(q.size)]
            SubqueryAlias: t
              TableScan: trades projection=[id, sym, ts]
            SubqueryAlias: q
              TableScan: quotes projection=[ts, size]
    --
    ProjectionExec: expr=[id@0 as id, sym@1 as sym, CASE WHEN count(*)#8@2 IS NOT NULL THEN count(*)#8@2 ELSE 0 END as count(*), sum(q.size)#10@3 as sum(q.size), max(q.size)#12@4 as max(q.size)]
      UniqueGroupsExec: keys=[id]
        AggregateExec: mode=FinalPartitioned, gby=[id@0 as id, sym@1 as sym], aggr=[sum(CASE WHEN count(*)#7 = 0 THEN 1 ELSE count(*)#7 END) as count(*)#8, sum(sum(q.size)#9) as sum(q.size)#10, max(max(q.size)#11) as max(q.size)#12]
          RepartitionExec: partitioning=Hash([id@0, sym@1], 2), input_partitions=1
            AggregateExec: mode=Partial, gby=[id@0 as id, sym@1 as sym], aggr=[sum(CASE WHEN count(*)#7 = 0 THEN 1 ELSE count(*)#7 END) as count(*)#8, sum(sum(q.size)#9) as sum(q.size)#10, max(max(q.size)#11) as max(q.size)#12]
              ReplayExec
                ProjectionExec: expr=[id@0 as id, sym@1 as sym, count(*)#7@3 as count(*)#7, sum(q.size)#9@4 as sum(q.size)#9, max(q.size)#11@5 as max(q.size)#11]
                  RangeJoinExec: type=Left, range=q.ts in [t.ts, t.ts + 5), aggs=[count(*), sum(q.size), max(q.size)], engine=cpu
                    DataSourceExec: partitions=1, partition_sizes=[1]
                    DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn averages_are_divided_above() {
    let sql = "SELECT t.sym, avg(q.size), avg(CAST(q.ts AS DECIMAL(20, 0))) FROM trades t JOIN quotes q ON q.ts <= t.ts GROUP BY t.sym";
    assert_snapshot!(plans(sql).await, @r#"
    Projection: t.sym AS sym, CASE WHEN sum#3 IS NOT NULL THEN CAST(sum#3 AS Float64) / CAST(count#4 AS Float64) END AS avg(q.size), CASE WHEN sum#7 IS NOT NULL THEN rmq_decimal_average(sum#7, count#8) END AS avg(q.ts)
      Aggregate: groupBy=[[t.sym]], aggr=[[sum(sum#1) AS sum#3, sum(count#2) AS count#4, sum(sum#5) AS sum#7, sum(count#6) AS count#8]]
        Projection: t.sym, sum#1, count#2, sum#5, count#6
          RangeJoin: type=Inner, range=q.ts in (-inf, t.ts], aggs=[sum(CAST(q.size AS Decimal128(20, 0))), count(CAST(q.size AS Decimal128(20, 0))), sum(CAST(CAST(q.ts AS Decimal128(20, 0)) AS Decimal128(38, 0))), count(CAST(CAST(q.ts AS Decimal128(20, 0)) AS Decimal128(38, 0)))]
            SubqueryAlias: t
              TableScan: trades projection=[sym, ts]
            SubqueryAlias: q
              TableScan: quotes projection=[ts, size]
    --
    ProjectionExec: expr=[sym@0 as sym, CASE WHEN sum#11@1 IS NOT NULL THEN CAST(sum#11@1 AS Float64) / CAST(count#12@2 AS Float64) END as avg(q.size), CASE WHEN sum#15@3 IS NOT NULL THEN rmq_decimal_average(sum#15@3, count#16@4) END as avg(q.ts)]
      AggregateExec: mode=FinalPartitioned, gby=[sym@0 as sym], aggr=[sum(sum#9) as sum#11, sum(count#10) as count#12, sum(sum#13) as sum#15, sum(count#14) as count#16]
        RepartitionExec: partitioning=Hash([sym@0], 2), input_partitions=2
          AggregateExec: mode=Partial, gby=[sym@0 as sym], aggr=[sum(sum#9) as sum#11, sum(count#10) as count#12, sum(sum#13) as sum#15, sum(count#14) as count#16]
            RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
              ProjectionExec: expr=[sym@0 as sym, sum#9@2 as sum#9, count#10@3 as count#10, sum#13@4 as sum#13, count#14@5 as count#14]
                RangeJoinExec: type=Inner, range=q.ts in (-inf, t.ts], aggs=[sum(CAST(q.size AS Decimal128(20, 0))), count(CAST(q.size AS Decimal128(20, 0))), sum(CAST(CAST(q.ts AS Decimal128(20, 0)) AS Decimal128(38, 0))), count(CAST(CAST(q.ts AS Decimal128(20, 0)) AS Decimal128(38, 0)))], engine=cpu
                  DataSourceExec: partitions=1, partition_sizes=[1]
                  DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn a_correlated_subquery() {
    let sql = "SELECT t.id, (SELECT max(q.price) FROM quotes q WHERE q.sym = t.sym AND q.ts < t.ts) AS high FROM trades t WHERE t.id > 0";
    assert_snapshot!(plans(sql).await, @r#"
    Projection: t.id, max(q.price)#2 AS high
      RangeJoin: type=Left, on=[sym], range=q.ts in (-inf, t.ts), aggs=[max(q.price)]
        SubqueryAlias: t
          Filter: trades.id > Int64(0)
            TableScan: trades projection=[id, sym, ts]
        SubqueryAlias: q
          TableScan: quotes projection=[sym, ts, price]
    --
    ProjectionExec: expr=[id@0 as id, max(q.price)#5@3 as high]
      RangeJoinExec: type=Left, on=[sym], range=q.ts in (-inf, t.ts), aggs=[max(q.price)], engine=cpu
        RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
          FilterExec: id@0 > 0
            DataSourceExec: partitions=1, partition_sizes=[1]
        DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn a_lateral_join() {
    let sql = "SELECT t.id, x.* FROM trades t CROSS JOIN LATERAL \
               (SELECT min(price) AS low, first_value(price ORDER BY ts) AS first FROM quotes q WHERE q.sym = t.sym AND q.ts > t.ts) AS x";
    assert_snapshot!(plans(sql).await, @r#"
    Projection: t.id, min(q.price)#1 AS low, first(q.price)#3 AS first
      RangeJoin: type=Left, on=[sym], range=q.ts in (t.ts, inf), aggs=[min(q.price), first(q.price)]
        SubqueryAlias: t
          TableScan: trades projection=[id, sym, ts]
        SubqueryAlias: q
          TableScan: quotes projection=[sym, ts, price]
    --
    ProjectionExec: expr=[id@0 as id, min(q.price)#6@3 as low, first(q.price)#8@4 as first]
      RangeJoinExec: type=Left, on=[sym], range=q.ts in (t.ts, inf), aggs=[min(q.price), first(q.price)], engine=cpu
        DataSourceExec: partitions=1, partition_sizes=[1]
        DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn a_self_join() {
    let sql = "SELECT a.sym, a.ts, min(b.price) FROM quotes a JOIN quotes b ON a.sym = b.sym AND b.ts BETWEEN a.ts - 300 AND a.ts GROUP BY a.sym, a.ts";
    assert_snapshot!(plans(sql).await, @r#"
    JoinChoice: a range join, or a hash join where few rows have equal keys
      Projection: a.sym AS sym, a.ts AS ts, min(b.price)#2 AS min(b.price)
        Aggregate: groupBy=[[a.sym, a.ts]], aggr=[[total_min(min(b.price)#1) AS min(b.price)#2]]
          RangeJoin: type=Inner, on=[sym], range=b.ts in [a.ts - 300, a.ts], aggs=[min(b.price)]
            SubqueryAlias: a
              TableScan: quotes projection=[sym, ts]
            SubqueryAlias: b
              TableScan: quotes projection=[sym, ts, price]
    --
    ProjectionExec: expr=[sym@0 as sym, ts@1 as ts, min(b.price)#4@2 as min(b.price)]
      UniqueGroupsExec: keys=[ts]
        AggregateExec: mode=FinalPartitioned, gby=[sym@0 as sym, ts@1 as ts], aggr=[total_min(min(b.price)#3) as min(b.price)#4]
          RepartitionExec: partitioning=Hash([sym@0, ts@1], 2), input_partitions=2
            AggregateExec: mode=Partial, gby=[sym@0 as sym, ts@1 as ts], aggr=[total_min(min(b.price)#3) as min(b.price)#4]
              ReplayExec
                RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
                  RangeJoinExec: type=Inner, on=[sym], range=b.ts in [a.ts - 300, a.ts], aggs=[min(b.price)], engine=cpu
                    DataSourceExec: partitions=1, partition_sizes=[1]
                    DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn the_table_function() {
    let sql = "SELECT * FROM range_join('trades', 'quotes', 'sym', 'quotes.ts BETWEEN trades.ts - 1 AND trades.ts', 'min(price) AS low, count(*) AS n')";
    assert_snapshot!(plans(sql).await, @r#"
    SubqueryAlias: range_join()
      Projection: trades.id, trades.sym, trades.ts, min(quotes.price)#1 AS low, count(*)#3 AS count(*) AS n
        RangeJoin: type=Left, on=[sym], range=quotes.ts in [trades.ts - 1, trades.ts], aggs=[min(quotes.price), count(*)]
          TableScan: trades projection=[id, sym, ts]
          TableScan: quotes projection=[sym, ts, price]
    --
    ProjectionExec: expr=[id@0 as id, sym@1 as sym, ts@2 as ts, min(quotes.price)#1@3 as low, count(*)#3@4 as n]
      RangeJoinExec: type=Left, on=[sym], range=quotes.ts in [trades.ts - 1, trades.ts], aggs=[min(quotes.price), count(*)], engine=cpu
        DataSourceExec: partitions=1, partition_sizes=[1]
        DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn the_table_function_with_a_prevailing_row() {
    let sql = "SELECT t.id, t.spread FROM range_join('trades AS t', 'quotes AS q', 'sym', 'q.ts > t.ts - 1 AND q.ts <= t.ts', \
               'max(price) - min(price) AS spread, count(*) AS n', 'include prevailing') AS t WHERE t.n > 1 ORDER BY t.id LIMIT 3";
    assert_snapshot!(plans(sql).await, @r#"
    Sort: t.id ASC NULLS LAST, fetch=3
      SubqueryAlias: t
        SubqueryAlias: range_join()
          Projection: t.id, max(q.price)#1 - min(q.price)#3 AS spread
            Filter: count(*)#5 > Int64(1)
              Projection: t.id, max(q.price)#1, min(q.price)#3, count(*)#5
                RangeJoin: type=Left, on=[sym], range=q.ts in (t.ts - 1, t.ts] include prevailing, aggs=[max(q.price), min(q.price), count(*)]
                  SubqueryAlias: t
                    TableScan: trades projection=[id, sym, ts]
                  SubqueryAlias: q
                    TableScan: quotes projection=[sym, ts, price]
    --
    SortPreservingMergeExec: [id@0 ASC NULLS LAST], fetch=3
      SortExec: TopK(fetch=3), expr=[id@0 ASC NULLS LAST], preserve_partitioning=[true]
        ProjectionExec: expr=[id@0 as id, max(q.price)#1@1 - min(q.price)#3@2 as spread]
          RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
            FilterExec: count(*)#5@3 > 1
              ProjectionExec: expr=[id@0 as id, max(q.price)#1@3 as max(q.price)#1, min(q.price)#3@4 as min(q.price)#3, count(*)#5@5 as count(*)#5]
                RangeJoinExec: type=Left, on=[sym], range=q.ts in (t.ts - 1, t.ts] include prevailing, aggs=[max(q.price), min(q.price), count(*)], engine=cpu
                  DataSourceExec: partitions=1, partition_sizes=[1]
                  DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn a_function_call_by_position() {
    let sql = "SELECT id, range_min('quotes.price', 0, id) FROM trades";
    assert_snapshot!(plans(sql).await, @r#"
    Projection: trades.id, range_min(quotes.price)#1 AS range_min(Utf8("quotes.price"),Int64(0),trades.id)
      RangeLookup: range_min(quotes.price) over rows 0 to trades.id
        TableScan: trades projection=[id]
    --
    ProjectionExec: expr=[id@0 as id, range_min(quotes.price)#2@1 as range_min(Utf8("quotes.price"),Int64(0),trades.id)]
      RangeLookupExec: range_min(quotes.price) over rows 0 to id@0, engine=cpu
        DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn a_join_without_a_range_is_unchanged() {
    let sql =
        "SELECT t.id, min(q.price) FROM trades t JOIN quotes q ON q.sym = t.sym GROUP BY t.id";
    assert_snapshot!(plans(sql).await, @r#"
    Aggregate: groupBy=[[t.id]], aggr=[[min(q.price)]]
      Projection: t.id, q.price
        Inner Join: t.sym = q.sym
          SubqueryAlias: t
            TableScan: trades projection=[id, sym]
          SubqueryAlias: q
            TableScan: quotes projection=[sym, price]
    --
    AggregateExec: mode=FinalPartitioned, gby=[id@0 as id], aggr=[min(q.price)]
      RepartitionExec: partitioning=Hash([id@0], 2), input_partitions=2
        AggregateExec: mode=Partial, gby=[id@0 as id], aggr=[min(q.price)]
          RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
            HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(sym@1, sym@0)], projection=[id@0, price@3]
              DataSourceExec: partitions=1, partition_sizes=[1]
              DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn sums_of_floats() {
    let sql = "SELECT t.id, sum(q.price) FROM trades t JOIN quotes q ON q.ts < t.ts GROUP BY t.id";
    assert_snapshot!(plans(sql).await, @r#"
    Projection: t.id AS id, sum(q.price)#2 AS sum(q.price)
      Aggregate: groupBy=[[t.id]], aggr=[[sum(sum(q.price)#1) AS sum(q.price)#2]]
        Projection: t.id, sum(q.price)#1
          RangeJoin: type=Inner, range=q.ts in (-inf, t.ts), aggs=[sum(q.price)]
            SubqueryAlias: t
              TableScan: trades projection=[id, ts]
            SubqueryAlias: q
              TableScan: quotes projection=[ts, price]
    --
    ProjectionExec: expr=[id@0 as id, sum(q.price)#4@1 as sum(q.price)]
      UniqueGroupsExec: keys=[id]
        AggregateExec: mode=FinalPartitioned, gby=[id@0 as id], aggr=[sum(sum(q.price)#3) as sum(q.price)#4]
          RepartitionExec: partitioning=Hash([id@0], 2), input_partitions=2
            AggregateExec: mode=Partial, gby=[id@0 as id], aggr=[sum(sum(q.price)#3) as sum(q.price)#4]
              ReplayExec
                RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
                  ProjectionExec: expr=[id@0 as id, sum(q.price)#3@2 as sum(q.price)#3]
                    RangeJoinExec: type=Inner, range=q.ts in (-inf, t.ts), aggs=[sum(q.price)], engine=cpu
                      DataSourceExec: partitions=1, partition_sizes=[1]
                      DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

#[tokio::test]
async fn groups_of_the_build_side_are_unchanged() {
    let sql =
        "SELECT q.sym, min(q.price) FROM trades t LEFT JOIN quotes q ON q.ts < t.ts GROUP BY q.sym";
    assert_snapshot!(plans(sql).await, @r#"
    Aggregate: groupBy=[[q.sym]], aggr=[[min(q.price)]]
      Projection: q.sym, q.price
        Left Join:  Filter: q.ts < t.ts
          SubqueryAlias: t
            TableScan: trades projection=[ts]
          SubqueryAlias: q
            TableScan: quotes projection=[sym, ts, price]
    --
    AggregateExec: mode=FinalPartitioned, gby=[sym@0 as sym], aggr=[min(q.price)]
      RepartitionExec: partitioning=Hash([sym@0], 2), input_partitions=2
        AggregateExec: mode=Partial, gby=[sym@0 as sym], aggr=[min(q.price)]
          RepartitionExec: partitioning=RoundRobinBatch(2), input_partitions=1
            NestedLoopJoinExec: join_type=Left, filter=ts@1 < ts@0, projection=[sym@1, price@3]
              DataSourceExec: partitions=1, partition_sizes=[1]
              DataSourceExec: partitions=1, partition_sizes=[1]
    "#);
}

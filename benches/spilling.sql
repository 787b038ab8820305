-- Bytes that range joins write and read whose sides are each ten times the memory, in no order and in time order:
--   cargo run --bin rmq -- -m 4M -f benches/spilling.sql
-- The join reads 24 bytes a row of the searched side (sym, ts, v), and 32 of the other one: 40 MB each.
SET datafusion.execution.target_partitions = 2;
SET datafusion.explain.analyze_level = 'summary';
SET rmq.range_joins = 'always';
CREATE TABLE p AS SELECT value * 7919 % 1000 AS sym, value * 7919 % 1666667 AS ts, value AS v FROM range(0, 1666667);
CREATE TABLE q AS SELECT value AS id, value * 31 % 1000 AS sym, value * 104729 % 1666667 AS ts, value AS x FROM range(0, 1250000);
CREATE TABLE p_in_order AS SELECT value * 7919 % 1000 AS sym, value AS ts, value AS v FROM range(0, 1666667);
CREATE TABLE q_in_order AS SELECT value AS id, value * 31 % 1000 AS sym, value * 4 / 3 AS ts, value AS x FROM range(0, 1250000);
EXPLAIN ANALYZE SELECT *, (SELECT min(p.v) FROM p WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 20000 AND q.ts) FROM q;
EXPLAIN ANALYZE SELECT q.*, p.v FROM q JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 2000 AND q.ts;
EXPLAIN ANALYZE SELECT *, (SELECT min(p.v) FROM p_in_order p WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 20000 AND q.ts) FROM q_in_order q;
EXPLAIN ANALYZE SELECT q.*, p.v FROM q_in_order q JOIN p_in_order p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 2000 AND q.ts;

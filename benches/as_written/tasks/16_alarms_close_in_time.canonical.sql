-- Pairs of alarms of two sensors within ten seconds.
SELECT a.id AS one, b.id AS other
FROM alarms a
JOIN alarms b ON a.id < b.id AND a.s <> b.s AND b.ts BETWEEN a.ts - INTERVAL '10 seconds' AND a.ts + INTERVAL '10 seconds'

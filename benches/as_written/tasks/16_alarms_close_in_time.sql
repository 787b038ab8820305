-- Pairs of alarms of two sensors within ten seconds.
SELECT a.id AS one, b.id AS other
FROM alarms a
JOIN alarms b ON a.id < b.id AND a.s <> b.s AND abs(extract(epoch FROM a.ts) - extract(epoch FROM b.ts)) <= 10

-- The mean reading between one and two hours before or after each alarm.
SELECT id, sum(sum) / sum(n) AS mean FROM (
  SELECT a.id, sum(p.v) AS sum, count(p.v) AS n FROM alarms a
  JOIN points p ON p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '2 hours' AND a.ts - INTERVAL '1 hour' GROUP BY a.id
  UNION ALL
  SELECT a.id, sum(p.v) AS sum, count(p.v) AS n FROM alarms a
  JOIN points p ON p.s = a.s AND p.ts BETWEEN a.ts + INTERVAL '1 hour' AND a.ts + INTERVAL '2 hours' GROUP BY a.id
) GROUP BY id

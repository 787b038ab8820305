-- The last readings before each alarm, all that have the last time.
WITH ranked AS (
  SELECT a.id, p.v, rank() OVER (PARTITION BY a.id ORDER BY p.ts DESC) AS r
  FROM alarms a
  JOIN points p ON p.s = a.s AND p.ts <= a.ts
)
SELECT id, v FROM ranked WHERE r = 1

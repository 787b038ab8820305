-- For each alarm the highest reading of the six hours before it, the first of equal ones.
SELECT a.id, t.ts, t.v
FROM alarms a
CROSS JOIN LATERAL (
  SELECT p.ts, p.v FROM points p
  WHERE p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '6 hours' AND a.ts
  ORDER BY p.v DESC NULLS LAST, p.ts LIMIT 1
) t

-- For each alarm the three highest readings of the six hours before it.
SELECT a.id, t.v
FROM alarms a
CROSS JOIN LATERAL (
  SELECT p.v FROM points p
  WHERE p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '6 hours' AND a.ts
  ORDER BY p.v DESC LIMIT 3
) t

-- The reading nearest in time to each alarm, before or after.
SELECT a.id, t.v
FROM alarms a
CROSS JOIN LATERAL (
  SELECT p.v FROM points p WHERE p.s = a.s
  ORDER BY abs(extract(epoch FROM p.ts - a.ts)), p.id LIMIT 1
) t

-- The reading nearest in time to each alarm, before or after, the earlier of two.
SELECT a.id, t.v
FROM alarms a
CROSS JOIN LATERAL (
  SELECT p.v FROM points p WHERE p.s = a.s
  ORDER BY abs(date_part('epoch', p.ts) - date_part('epoch', a.ts)), p.ts, p.id LIMIT 1
) t

-- The three readings before each alarm.
SELECT a.id, t.ts, t.v
FROM alarms a
CROSS JOIN LATERAL (SELECT p.ts, p.v FROM points p WHERE p.s = a.s AND p.ts <= a.ts ORDER BY p.ts DESC, p.id DESC LIMIT 3) t

-- The number of the last reading before each alarm, beside the alarm's.
SELECT a.id, (SELECT p.id FROM points p WHERE p.s = a.s AND p.ts <= a.ts ORDER BY p.ts DESC, p.id DESC LIMIT 1)
FROM alarms a

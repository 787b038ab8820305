-- The three readings before each alarm.
SELECT a.id, p.ts, p.v
FROM alarms a
JOIN points p ON p.s = a.s AND p.ts <= a.ts
QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY p.ts DESC, p.id DESC) <= 3

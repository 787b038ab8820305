-- When in the day before each alarm the sensor read highest.
SELECT a.id, (SELECT arg_max(p.ts, p.v) FROM points p
              WHERE p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '1 day' AND a.ts) AS at
FROM alarms a

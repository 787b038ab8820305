-- When in the day before each alarm the sensor read highest; the first of equal ones.
SELECT a.id, (SELECT arg_max(p.ts, p.v ORDER BY p.ts, p.id) FROM points p
              WHERE p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '1 day' AND a.ts) AS at
FROM alarms a

-- How many visits each sensor's alarms make: an alarm half an hour after the one before starts another.
SELECT a.s, count(*) AS visits
FROM alarms a
WHERE NOT EXISTS (SELECT 1 FROM alarms b WHERE b.s = a.s AND b.ts < a.ts AND b.ts >= a.ts - INTERVAL '30 minutes')
GROUP BY a.s

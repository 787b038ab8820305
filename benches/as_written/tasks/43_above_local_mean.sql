-- For each alarm the lowest reading of the hour before it that is above the mean of the day before it.
SELECT a.id, (SELECT min(p.v) FROM points p
              WHERE p.s = a.s AND p.ts BETWEEN a.ts - INTERVAL '1 hour' AND a.ts
                AND p.v > (SELECT avg(x.v) FROM points x WHERE x.s = a.s AND x.ts BETWEEN a.ts - INTERVAL '1 day' AND a.ts)) AS low
FROM alarms a

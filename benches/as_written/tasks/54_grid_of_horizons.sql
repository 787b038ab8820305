-- The mean bid at 0, 1, 5, 10 and 30 minutes after each trade, in the minute that ends there.
SELECT h.minutes, avg(q.bid) AS mean, count(*) AS n
FROM (SELECT sym, ts, unnest([0, 1, 5, 10, 30]) AS minutes FROM trades) h
JOIN quotes q ON q.sym = h.sym
 AND q.ts > h.ts + (h.minutes - 1) * INTERVAL '1 minute' AND q.ts <= h.ts + h.minutes * INTERVAL '1 minute'
GROUP BY h.minutes

SELECT count(*), sum(a.value * b.value) FROM series a JOIN series b ON b.name = a.name AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '10 minutes'

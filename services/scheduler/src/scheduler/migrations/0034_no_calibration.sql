-- Nothing is learnt from expected starts any more.
DROP TABLE calibration;
DROP FUNCTION note_calibration();
DELETE FROM change WHERE what = 'calibration';
ALTER TABLE gang DROP COLUMN expected;

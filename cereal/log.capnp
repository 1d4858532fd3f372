# Messages of the bus and of the logs. One message is one stream-framed, unpacked Event.
#
# Layout rule: the wire position of a field follows from the ordinals and types of ALL fields with
# lower ordinals, so every ordinal is declared, in order, also those that nobody reads any more.
# Names may change; ordinals and types may not. What has been out of use for years is `Opaque`: a
# pointer takes one word whatever it points to. What the daemon neither writes nor reads, but logs
# hold, stands in driving.capnp, hardware.capnp and gnss.capnp; how it is, in health.capnp.
#
# Frames of reference:
#   device  x forward, y right, z down, fixed to the mounted device
#   calib   device, turned so that x is the direction of travel (euler angles: rpyCalib)
#   road    x forward, y left, z up, origin on the ground below the device
# Times ending in Eof/Sof and logMonoTime: nanoseconds of the monotonic clock (end and start of the
# exposure of a frame). Model trajectories: seconds from the time of the frame.

@0xf3b1f17e25a4285b;

using Car = import "car.capnp";
using Driving = import "driving.capnp";
using Gnss = import "gnss.capnp";
using Hardware = import "hardware.capnp";
using Health = import "health.capnp";

const logVersion :Int32 = 1;

struct Opaque {}

struct Map(Key, Value) {
  entries @0 :List(Entry);

  struct Entry {
    key @0 :Key;
    value @1 :Value;
  }
}

# --- written by the daemon -----------------------------------------------------------------------

enum LaneChangeState {
  off @0;
  preLaneChange @1;
  laneChangeStarting @2;
  laneChangeFinishing @3;
}

enum LaneChangeDirection {
  none @0;
  left @1;
  right @2;
}

# A series of points in the calib frame. Empty lists mean "not given".
struct XYZTData @0xc3cbae1fd505ae80 {  # in the unit of the field that holds it
  x @0 :List(Float32);
  y @1 :List(Float32);
  z @2 :List(Float32);
  t @3 :List(Float32);                # s
  xStd @4 :List(Float32);
  yStd @5 :List(Float32);
  zStd @6 :List(Float32);
}

# modelV2, 20 Hz. 33 points per trajectory.
struct ModelDataV2 {
  frameId @0 :UInt32;                 # id of the newest road camera frame used
  frameAge @1 :UInt32;                # frames by which the camera is ahead of frameId
  frameDropPerc @2 :Float32;          # %, share of dropped frames, filtered
  timestampEof @3 :UInt64;            # ns, of the road camera frame
  position @4 :XYZTData;              # m
  orientation @5 :XYZTData;           # rad, euler angles relative to now
  velocity @6 :XYZTData;              # m/s
  orientationRate @7 :XYZTData;       # rad/s
  laneLines @8 :List(XYZTData);       # m; far left, left, right, far right
  laneLineProbs @9 :List(Float32);    # 0..1
  roadEdges @10 :List(XYZTData);      # m; left, right
  leads @11 :List(LeadDataV2);        # retired
  meta @12 :MetaData;                 # what the driver and the car are about to do
  laneLineStds @13 :List(Float32);    # m, standard deviation of y at the car
  roadEdgeStds @14 :List(Float32);    # m, standard deviation of y at the car
  modelExecutionTime @15 :Float32;    # s, from inputs ready to outputs parsed
  rawPredictions @16 :Data;           # float32, little endian; empty unless asked for
  gpuExecutionTime @17 :Float32;      # retired
  leadsV3 @18 :List(LeadDataV3);      # vehicle ahead now, in 2 s and in 4 s
  acceleration @19 :XYZTData;         # m/s^2
  frameIdExtra @20 :UInt32;           # id of the wide camera frame
  temporalPose @21 :Pose;             # pose of the simulated drive; models until April 2025 only
  navEnabled @22 :Bool;               # retired
  confidence @23 :ConfidenceClass;    # that no disengagement is near
  locationMonoTime @24 :UInt64;       # retired
  lateralPlannerSolution @25 :LateralPlannerSolution;  # retired
  action @26 :Action;                 # what the car should do now
  big @27 :Bool;                      # made by the large model

  struct LeadDataV2 {                 # retired
    prob @0 :Float32;
    t @1 :Float32;
    xyva @2 :List(Float32);
    xyvaStd @3 :List(Float32);
  }

  # One candidate for the vehicle ahead, at t = 0, 2, 4, 6, 8, 10 s.
  struct LeadDataV3 {
    prob @0 :Float32;                 # that it is there at probTime, 0..1
    probTime @1 :Float32;             # s
    t @2 :List(Float32);              # s
    x @3 :List(Float32);              # m ahead of the camera
    xStd @4 :List(Float32);           # m
    y @5 :List(Float32);              # m to the right
    yStd @6 :List(Float32);           # m
    v @7 :List(Float32);              # m/s, absolute
    vStd @8 :List(Float32);           # m/s
    a @9 :List(Float32);              # m/s^2
    aStd @10 :List(Float32);          # m/s^2
  }

  struct MetaData {
    engagedProb @0 :Float32;                  # 0..1, that the stack is engaged
    desirePrediction @1 :List(Float32);       # 0..1; 4 horizons (2, 4, 6, 8 s) x 8 desires, flattened
    brakeDisengageProb @2 :Float32;           # retired
    gasDisengageProb @3 :Float32;             # retired
    steerOverrideProb @4 :Float32;            # retired
    desireState @5 :List(Float32);            # 0..1, for each of the 8 desires now
    disengagePredictions @6 :DisengagePredictions;  # at horizons t
    hardBrakePredicted @7 :Bool;              # braking harder than 3 or 5 m/s^2 is expected within 2 s
    laneChangeState @8 :LaneChangeState;      # of the lane change that the driver asked for
    laneChangeDirection @9 :LaneChangeDirection;  # and its side
  }

  struct DisengagePredictions {       # 0..1 at each horizon
    t @0 :List(Float32);                      # s: 2, 4, 6, 8, 10
    brakeDisengageProbs @1 :List(Float32);
    gasDisengageProbs @2 :List(Float32);
    steerOverrideProbs @3 :List(Float32);
    brake3MetersPerSecondSquaredProbs @4 :List(Float32);
    brake4MetersPerSecondSquaredProbs @5 :List(Float32);
    brake5MetersPerSecondSquaredProbs @6 :List(Float32);
    gasPressProbs @7 :List(Float32);          # at t; of newer models at 0 s too
    brakePressProbs @8 :List(Float32);        # at t; of newer models at 0 s too
  }

  struct Pose {
    trans @0 :List(Float32);          # m/s
    rot @1 :List(Float32);            # rad/s
    transStd @2 :List(Float32);       # m/s
    rotStd @3 :List(Float32);         # rad/s
  }

  struct LateralPlannerSolution {     # retired
    x @0 :List(Float32);
    y @1 :List(Float32);
    yaw @2 :List(Float32);
    yawRate @3 :List(Float32);
    xStd @4 :List(Float32);
    yStd @5 :List(Float32);
    yawStd @6 :List(Float32);
    yawRateStd @7 :List(Float32);
  }

  struct Action {
    desiredCurvature @0 :Float32;             # 1/m, positive turns right (z down)
    desiredAcceleration @1 :Float32;          # m/s^2
    shouldStop @2 :Bool;                      # the car should come to a stop or stay standing
  }

  enum ConfidenceClass {
    red @0;
    yellow @1;
    green @2;
  }
}

# drivingModelData, 20 Hz: the small digest of modelV2.
struct DrivingModelData {
  frameId @0 :UInt32;                 # id of the road camera frame
  frameIdExtra @1 :UInt32;            # id of the wide camera frame
  action @2 :ModelDataV2.Action;      # as modelV2.action
  laneLineMeta @3 :LaneLineMeta;      # the two lines of the car's own lane
  meta @4 :MetaData;                  # lane change
  path @5 :PolyPath;                  # the planned position, as polynomials
  frameDropPerc @6 :Float32;          # %
  modelExecutionTime @7 :Float32;     # s
  big @8 :Bool;                       # made by the large model

  # position(t) in m, t in s; coefficients in ascending powers of t.
  struct PolyPath {                   # of positions in m over times in s
    xCoefficients @0 :List(Float32);
    yCoefficients @1 :List(Float32);
    zCoefficients @2 :List(Float32);
  }

  struct LaneLineMeta {
    leftY @0 :Float32;                # m, at the car
    rightY @1 :Float32;               # m, at the car
    leftProb @2 :Float32;             # 0..1, that the line is there
    rightProb @3 :Float32;            # 0..1, that the line is there
  }

  struct MetaData {
    laneChangeState @0 :LaneChangeState;  # as modelV2.meta
    laneChangeDirection @1 :LaneChangeDirection;  # as modelV2.meta
  }
}

# 20 Hz: motion of the camera between the two newest frames. Device frame.
struct CameraOdometry {
  trans @0 :List(Float32);            # m/s
  rot @1 :List(Float32);              # rad/s
  transStd @2 :List(Float32);         # m/s
  rotStd @3 :List(Float32);           # rad/s
  frameId @4 :UInt32;                 # id of the road camera frame
  timestampEof @5 :UInt64;            # ns
  wideFromDeviceEuler @6 :List(Float32);     # rad
  wideFromDeviceEulerStd @7 :List(Float32);  # rad
  roadTransformTrans @8 :List(Float32);      # m, of the road frame
  roadTransformTransStd @9 :List(Float32);  # m
}

# 20 Hz: what the driver camera shows.
struct DriverStateV2 {
  frameId @0 :UInt32;                 # id of the driver camera frame
  modelExecutionTime @1 :Float32;     # s, from inputs ready to outputs parsed
  dspExecutionTime @2 :Float32;       # retired
  rawPredictions @3 :Data;            # float32, little endian
  poorVisionProb @4 :Float32;         # retired 2026
  wheelOnRightProb @5 :Float32;       # 0..1, that the steering wheel is on the right
  leftDriverData @6 :DriverData;      # the left seat
  rightDriverData @7 :DriverData;     # the right seat
  gpuExecutionTime @8 :Float32;       # s of it, in the program

  struct DriverData {
    faceOrientation @0 :List(Float32);        # rad: pitch, yaw, roll
    faceOrientationStd @1 :List(Float32);     # rad
    facePosition @2 :List(Float32);           # share of the image, from its centre
    facePositionStd @3 :List(Float32);        # share of the image
    faceProb @4 :Float32;                     # 0..1, that a face is seen
    leftEyeProb @5 :Float32;                  # 0..1, that the eye is seen
    rightEyeProb @6 :Float32;                 # 0..1, that the eye is seen
    leftBlinkProb @7 :Float32;                # 0..1, that the eye is closed
    rightBlinkProb @8 :Float32;               # 0..1, that the eye is closed
    sunglassesProb @9 :Float32;               # 0..1, that the driver wears them
    occludedProb @10 :Float32;                # retired 2026
    readyProb @11 :List(Float32);             # retired 2026
    notReadyProb @12 :List(Float32);          # retired 2026
    phoneProb @13 :Float32;                   # 0..1, that the driver uses a phone
    sleepProb @14 :Float32;                   # 0..1, that the driver sleeps
  }
}

# --- read by the daemon and by the tools ---------------------------------------------------------

# State of one camera, one per frame.
struct FrameData {
  frameId @0 :UInt32;
  encodeId @1 :UInt32;
  timestampEof @2 :UInt64;            # ns
  frameLength @3 :Int32;              # retired
  integLines @4 :Int32;               # exposure, in lines
  globalGain @5 :Int32;               # retired
  image @6 :Data;
  frameType @7 :UInt16;               # retired; an enumeration: 16 bits
  timestampSof @8 :UInt64;            # ns
  androidCaptureResult @9 :Opaque;    # retired
  transform @10 :List(Float32);
  lensPos @11 :Int32;                 # @11..@14 retired
  lensSag @12 :Float32;
  lensErr @13 :Float32;
  lensTruePos @14 :Float32;
  gain @15 :Float32;
  focusVal @16 :List(Int16);          # @16..@19 retired
  focusConf @17 :List(UInt8);
  sharpnessScore @18 :List(UInt16);
  recoverState @19 :Int32;
  highConversionGain @20 :Bool;
  measuredGreyFraction @21 :Float32;  # 0..1
  targetGreyFraction @22 :Float32;    # 0..1
  processingTime @23 :Float32;        # s
  temperaturesC @24 :List(Float32);
  frameIdSensor @25 :UInt32;
  sensor @26 :ImageSensor;
  exposureValPercent @27 :Float32;
  requestId @28 :UInt32;

  enum ImageSensor {
    unknown @0;
    ar0231 @1;
    ox03c10 @2;
    os04c10 @3;
  }
}

# 4 Hz: how the device is mounted.
struct LiveCalibrationData {
  warpMatrix @0 :List(Float32);       # retired
  calStatusDEPRECATED @1 :Int8;       # retired: calStatus @11 is the field in use
  calCycle @2 :Int32;
  calPerc @3 :Int8;                   # %
  extrinsicMatrix @4 :List(Float32);  # 3 x 4, row major: view frame from road frame
  warpMatrix2 @5 :List(Float32);      # retired
  warpMatrixBig @6 :List(Float32);    # retired
  rpyCalib @7 :List(Float32);         # rad, roll pitch yaw: device from calib
  rpyCalibSpread @8 :List(Float32);   # rad
  validBlocks @9 :Int32;
  wideFromDeviceEuler @10 :List(Float32);  # rad
  calStatus @11 :Status;
  height @12 :List(Float32);          # m above the road

  enum Status {
    uncalibrated @0;
    calibrated @1;
    invalid @2;
    recalibrating @3;
  }
}

# Driver monitoring as published until 2025 (Event @71).
struct DriverMonitoringStateV1 @0xb83cda094a1da284 {
  eventsRetired @0 :List(Car.OldOnroadEvent);  # retired
  faceDetected @1 :Bool;
  isDistracted @2 :Bool;
  awarenessStatus @3 :Float32;        # 1 attentive .. 0
  isRHD @4 :Bool;                     # the driver sits on the right: drive on the left
  rhdChecked @5 :Bool;                # retired
  posePitchOffset @6 :Float32;        # rad
  posePitchValidCount @7 :UInt32;
  poseYawOffset @8 :Float32;          # rad
  poseYawValidCount @9 :UInt32;
  stepChange @10 :Float32;
  awarenessActive @11 :Float32;
  awarenessPassive @12 :Float32;
  isLowStd @13 :Bool;
  hiStdCount @14 :UInt32;
  isPreview @15 :Bool;                # retired
  isActiveMode @16 :Bool;
  distractedType @17 :UInt32;
  events @18 :List(Driving.OnroadEvent);
  uncertainCount @19 :UInt32;
  phoneProbOffset @20 :Float32;       # retired
  phoneProbValidCount @21 :UInt32;    # retired
}

# Driver monitoring as published since 2026 (Event @151).
struct DriverMonitoringState {
  lockout @0 :Bool;
  alertCountLockoutPercent @1 :Int8;  # retired
  alertTimeLockoutPercent @2 :Int8;   # retired
  alwaysOn @3 :Bool;
  alwaysOnLockout @4 :Bool;
  alertLevel @5 :AlertLevel;
  activePolicy @6 :MonitoringPolicy;
  isRHD @7 :Bool;                     # the driver sits on the right: drive on the left
  rhdCalibration @8 :CalibrationState;
  visionPolicyState @9 :VisionPolicyState;
  wheeltouchPolicyState @10 :WheeltouchPolicyState;
  lockoutMinutesRemaining @11 :Int8;
  alert3Count @12 :Int8;
  noResponseCount @13 :Int8;
  noResponseForceDecel @14 :Bool;
  lockoutCount @15 :Int8;

  enum AlertLevel {
    none @0;
    one @1;
    two @2;
    three @3;
  }

  enum MonitoringPolicy {
    wheeltouch @0;
    vision @1;
  }

  struct CalibrationState {
    calibratedPercent @0 :Int8;
    offset @1 :Float32;
  }

  struct VisionPolicyState {
    awarenessPercent @0 :Int8;
    awarenessStep @1 :Float32;
    isDistracted @2 :Bool;
    distractedTypes @3 :DistractedTypes;
    faceDetected @4 :Bool;
    pose @5 :Pose;
    wheeltouchFallbackPercent @6 :Int8;
    uncertainOffroadAlertPercent @7 :Int8;

    struct DistractedTypes {
      pose @0 :Bool;
      eye @1 :Bool;
      phone @2 :Bool;
      sleep @3 :Bool;
    }

    struct Pose {
      pitch @0 :Float32;              # rad
      yaw @1 :Float32;                # rad
      pitchCalib @2 :CalibrationState;
      yawCalib @3 :CalibrationState;
      calibrated @4 :Bool;
      uncertainty @5 :Float32;
    }
  }

  struct WheeltouchPolicyState {
    awarenessPercent @0 :Int8;
    awarenessStep @1 :Float32;
    driverInteracting @2 :Bool;
  }
}

# 4 Hz: how long the car takes to answer a steering command.
struct LiveDelayData @0x98dfdb22c44df8d4 {
  lateralDelay @0 :Float32;           # s, to be used
  validBlocks @1 :Int32;
  status @2 :Status;
  lateralDelayEstimate @3 :Float32;   # s, newest estimate
  points @4 :List(Float32);
  lateralDelayEstimateStd @5 :Float32;
  calPerc @6 :Int8;                   # %
  version @7 :Int32;

  enum Status {
    unestimated @0;
    estimated @1;
    invalid @2;
  }
}

# 2 Hz: state of the device itself.
struct DeviceState @0xa4d8b5af2aa492eb {
  cpu0 @0 :UInt16;                    # @0..@6 retired
  cpu1 @1 :UInt16;
  cpu2 @2 :UInt16;
  cpu3 @3 :UInt16;
  mem @4 :UInt16;
  gpu @5 :UInt16;
  bat @6 :UInt32;
  freeSpacePercent @7 :Float32;
  batteryPercent @8 :Int16;           # retired
  batteryStatus @9 :Text;             # retired
  fanSpeedPercentDesired @10 :UInt16;
  started @11 :Bool;                  # a drive is on
  usbOnline @12 :Bool;                # retired
  startedMonoTime @13 :UInt64;        # ns
  thermalStatus @14 :ThermalStatus;
  batteryCurrent @15 :Int32;          # @15..@18 retired
  batteryVoltage @16 :Int32;
  chargingError @17 :Bool;
  chargingDisabled @18 :Bool;
  memoryUsagePercent @19 :Int8;
  cpuUsagePercentRetired @20 :Int8;   # retired
  pa0 @21 :UInt16;                    # retired
  networkType @22 :NetworkType;
  offroadPowerUsageUwh @23 :UInt32;   # uWh
  networkStrength @24 :NetworkStrength;
  carBatteryCapacityUwh @25 :UInt32;  # uWh
  cpuTempC @26 :List(Float32);
  gpuTempC @27 :List(Float32);
  memoryTempC @28 :Float32;
  batteryTempC @29 :Float32;          # retired
  ambientTempC @30 :Float32;          # retired
  networkInfo @31 :NetworkInfo;
  lastAthenaPingTime @32 :UInt64;     # ns
  gpuUsagePercent @33 :Int8;
  cpuUsagePercent @34 :List(Int8);    # per core
  nvmeTempC @35 :List(Float32);       # retired 2026
  modemTempC @36 :List(Float32);
  screenBrightnessPercent @37 :Int8;
  thermalZones @38 :List(ThermalZone);
  pmicTempC @39 :List(Float32);
  powerDrawW @40 :Float32;
  networkMetered @41 :Bool;
  somPowerDrawW @42 :Float32;
  networkStats @43 :NetworkStats;
  maxTempC @44 :Float32;
  deviceType @45 :InitData.DeviceType;
  intakeTempC @46 :Float32;
  exhaustTempC @47 :Float32;
  caseTempC @48 :Float32;             # gnssTempC in 2026
  dspTempC @49 :Float32;
  bottomSocTempC @50 :Float32;
  chestnutPresent @51 :Bool;          # an external GPU is there (2026)
  usbState @52 :Hardware.UsbState;

  struct ThermalZone {
    name @0 :Text;
    temp @1 :Float32;                 # degrees Celsius
  }

  enum NetworkType {
    none @0;
    wifi @1;
    cell2G @2;
    cell3G @3;
    cell4G @4;
    cell5G @5;
    ethernet @6;
  }

  enum NetworkStrength {
    unknown @0;
    poor @1;
    moderate @2;
    good @3;
    great @4;
  }

  struct NetworkInfo {
    technology @0 :Text;
    operator @1 :Text;
    band @2 :Text;
    channel @3 :UInt16;
    extra @4 :Text;
    state @5 :Text;
  }

  struct NetworkStats {               # bytes
    wwanTx @0 :Int64;
    wwanRx @1 :Int64;
  }

  enum ThermalStatus {                # green, yellow, red, danger before 2026
    ok @0;
    warm @1;
    overheated @2;
    critical @3;
  }
}

# State of an external GPU (2026).
struct ChestnutState {
  tempC @0 :Float32;
  memoryTempC @1 :Float32;
  powerDrawW @2 :Float32;
  powerLimitW @3 :Float32;
  gpuUsagePercent @4 :UInt8;
  gpuClockMhz @5 :UInt16;
  fanSpeedRpm @6 :UInt16;
  pcieLtssm @7 :UInt8;
  supplyVoltage @8 :UInt16;           # mV
  supplyCurrent @9 :Int16;            # mA
  supplyFault @10 :Bool;
}

# Where an encoded frame is in the video files of a drive.
struct EncodeIndex {
  frameId @0 :UInt32;
  type @1 :Type;
  encodeId @2 :UInt32;                # counts from the start of the drive
  segmentNum @3 :Int32;
  segmentId @4 :UInt32;               # in the file, presentation order
  segmentIdEncode @5 :UInt32;         # in the file, encoding order
  timestampSof @6 :UInt64;            # ns
  timestampEof @7 :UInt64;            # ns
  flags @8 :UInt32;
  len @9 :UInt32;                     # bytes

  enum Type {
    bigBoxLossless @0;
    fullHEVC @1;
    bigBoxHEVC @2;
    chffrAndroidH264 @3;
    fullLosslessClip @4;
    front @5;
    qcameraH264 @6;
    livestreamH264 @7;
  }
}

# One encoded frame, or the part of a video stream that carries it.
struct EncodeData {
  idx @0 :EncodeIndex;
  data @1 :Data;
  header @2 :Data;                    # what a decoder needs before the first frame
  unixTimestampNanos @3 :UInt64;      # ns since 1970, UTC
  width @4 :UInt32;                   # pixels
  height @5 :UInt32;
}

# Sound after a bookmark (2025).
struct AudioFeedback @0xed47e3c075be372a {
  audio @0 :Hardware.AudioData;
  blockNum @1 :UInt16;
}

# Once after the start of the device.
struct Boot {
  wallTimeNanos @0 :UInt64;           # ns since 1970, UTC
  lastKmsg @1 :Data;                  # retired
  lastPmsg @2 :Data;                  # retired
  launchLog @3 :Text;
  pstore @4 :Map(Text, Data);
  commands @5 :Map(Text, Data);
}

struct Thumbnail {
  frameId @0 :UInt32;
  timestampEof @1 :UInt64;            # ns
  thumbnail @2 :Data;
  encoding @3 :Encoding;

  enum Encoding {
    unknown @0;
    jpeg @1;
    keyframe @2;
  }
}

struct CanData {
  address @0 :UInt32;
  busTime @1 :UInt16;                 # retired
  dat @2 :Data;
  src @3 :UInt8;
}

# Marks the ends of a log file.
struct Sentinel {
  type @0 :SentinelType;
  signal @1 :Int32;

  enum SentinelType {
    endOfSegment @0;
    endOfRoute @1;
    startOfSegment @2;
    startOfRoute @3;
  }
}

# First message of a log file.
struct InitData {
  kernelArgs @0 :List(Text);
  gctx @1 :Text;                      # retired
  dongleId @2 :Text;
  deviceType @3 :DeviceType;
  version @4 :Text;
  androidBuildInfo @5 :Opaque;        # retired
  androidSensors @6 :List(Opaque);    # retired
  chffrAndroidExtra @7 :Opaque;       # retired
  pandaInfo @8 :PandaInfo;
  dirty @9 :Bool;
  gitCommit @10 :Text;
  gitBranch @11 :Text;
  passive @12 :Bool;
  gitRemote @13 :Text;
  iosBuildInfo @14 :Opaque;           # retired
  kernelVersion @15 :Text;
  androidProperties @16 :Map(Text, Text);
  params @17 :Map(Text, Data);
  osVersion @18 :Text;
  commands @19 :Map(Text, Data);
  wallTimeNanos @20 :UInt64;          # ns since 1970, UTC
  gitCommitDate @21 :Text;
  bootlogId @22 :Text;
  gitSrcCommit @23 :Text;
  gitSrcCommitDate @24 :Text;

  struct PandaInfo {
    hasPanda @0 :Bool;
    dongleId @1 :Text;
    stVersion @2 :Text;
    espVersion @3 :Text;
  }

  enum DeviceType {
    unknown @0;
    neo @1;
    chffrAndroid @2;
    chffrIos @3;
    tici @4;
    pc @5;
    tizi @6;
    mici @7;
  }
}

struct ManagerState {
  processes @0 :List(ProcessState);

  struct ProcessState {
    name @0 :Text;
    pid @1 :Int32;
    running @2 :Bool;
    exitCode @3 :Int32;
    shouldBeRunning @4 :Bool;
  }
}

# --- the envelope --------------------------------------------------------------------------------

# `valid` is true by default, so the stored bit is inverted.
struct Event {
  logMonoTime @0 :UInt64;             # ns
  valid @67 :Bool = true;

  union {
    initData @1 :InitData;
    roadCameraState @2 :FrameData;    # narrowRoadCameraState in 2026
    gpsNMEA @3 :Gnss.GPSNMEAData;
    sensorEventDEPRECATED @4 :Hardware.SensorEventData;
    can @5 :List(CanData);
    deviceState @6 :DeviceState;
    controlsState @7 :Driving.ControlsState;
    liveEventDEPRECATED @8 :List(Opaque);
    model @9 :Opaque;
    featuresDEPRECATED @10 :Opaque;
    sensorEventsDEPRECATED @11 :List(Hardware.SensorEventData);
    pandaStateDEPRECATED @12 :Hardware.PandaState;
    radarState @13 :Driving.RadarState;
    liveUIDEPRECATED @14 :Opaque;
    roadEncodeIdx @15 :EncodeIndex;   # narrowRoadEncodeIdx in 2026
    liveTracksDEPRECATED @16 :List(Opaque);
    sendcan @17 :List(CanData);
    logMessage @18 :Text;
    liveCalibration @19 :LiveCalibrationData;  # extrinsicsCalibration in 2026
    androidLog @20 :Hardware.AndroidLogEntry;  # operatingSystemLog in 2026
    gpsLocation @21 :Gnss.GpsLocationData;
    carState @22 :Car.CarState;
    carControl @23 :Car.CarControl;
    longitudinalPlan @24 :Driving.LongitudinalPlan;
    liveLocationDEPRECATED @25 :Opaque;
    ethernetDataDEPRECATED @26 :List(Opaque);
    navUpdateDEPRECATED @27 :Opaque;
    cellInfoDEPRECATED @28 :List(Opaque);
    wifiScanDEPRECATED @29 :List(Opaque);
    androidGnssDEPRECATED @30 :Opaque;
    qcomGnss @31 :Gnss.QcomGnss;
    lidarPtsDEPRECATED @32 :Opaque;
    procLog @33 :Hardware.ProcLog;
    ubloxGnss @34 :Gnss.UbloxGnss;
    clocks @35 :Hardware.Clocks;
    liveMpcDEPRECATED @36 :Opaque;
    liveLongitudinalMpcDEPRECATED @37 :Opaque;
    navStatusDEPRECATED @38 :Opaque;
    ubloxRaw @39 :Data;
    gpsPlannerPointsDEPRECATED @40 :Opaque;
    gpsPlannerPlanDEPRECATED @41 :Opaque;
    applanixRawDEPRECATED @42 :Data;
    trafficEventsDEPRECATED @43 :List(Opaque);
    liveLocationTimingDEPRECATED @44 :Opaque;
    orbslamCorrectionDEPRECATED @45 :Opaque;
    liveLocationCorrectedDEPRECATED @46 :Opaque;
    orbObservationDEPRECATED @47 :List(Opaque);
    gpsLocationExternal @48 :Gnss.GpsLocationData;
    locationDEPRECATED @49 :Opaque;
    uiNavigationEventDEPRECATED @50 :Opaque;
    liveLocationKalmanDeprecatedDEPRECATED @51 :Opaque;
    testJoystick @52 :Hardware.Joystick;
    orbOdometryDEPRECATED @53 :Opaque;
    orbFeaturesDEPRECATED @54 :Opaque;
    applanixLocationDEPRECATED @55 :Opaque;
    orbKeyFrameDEPRECATED @56 :Opaque;
    uiLayoutStateDEPRECATED @57 :Opaque;
    orbFeaturesSummaryDEPRECATED @58 :Opaque;
    driverStateDEPRECATED @59 :Opaque;
    boot @60 :Boot;
    liveParameters @61 :Driving.LiveParametersData;  # vehicleParameters in 2026
    liveMapDataDEPRECATED @62 :Opaque;
    cameraOdometry @63 :CameraOdometry;
    lateralPlanDEPRECATED @64 :Driving.LateralPlan;
    kalmanOdometryDEPRECATED @65 :Opaque;
    thumbnail @66 :Thumbnail;
    onroadEventsDEPRECATED @68 :List(Car.OldOnroadEvent);
    carParams @69 :Car.CarParams;
    driverCameraState @70 :FrameData;  # cabinCameraState in 2026
    driverMonitoringState @71 :DriverMonitoringStateV1;
    liveLocationKalmanDEPRECATED @72 :Driving.LiveLocationKalman;
    sentinel @73 :Sentinel;
    wideRoadCameraState @74 :FrameData;
    modelV2 @75 :ModelDataV2;
    driverEncodeIdx @76 :EncodeIndex;  # cabinEncodeIdx in 2026
    wideRoadEncodeIdx @77 :EncodeIndex;
    managerState @78 :ManagerState;
    uploaderState @79 :Hardware.UploaderState;
    peripheralState @80 :Hardware.PeripheralState;
    pandaStates @81 :List(Hardware.PandaState);
    navInstruction @82 :Driving.NavInstruction;
    navRoute @83 :Driving.NavRoute;
    navThumbnail @84 :Thumbnail;
    errorLogMessage @85 :Text;
    roadEncodeData @86 :EncodeData;  # narrowRoadEncodeData in 2026
    driverEncodeData @87 :EncodeData;  # cabinEncodeData in 2026
    wideRoadEncodeData @88 :EncodeData;
    qRoadEncodeData @89 :EncodeData;  # qNarrowRoadEncodeData in 2026
    qRoadEncodeIdx @90 :EncodeIndex;  # qNarrowRoadEncodeIdx in 2026
    gnssMeasurements @91 :Gnss.GnssMeasurements;
    driverStateV2 @92 :DriverStateV2;
    userBookmark @93 :Hardware.UserBookmark;
    liveTorqueParameters @94 :Driving.LiveTorqueParametersData;  # lateralTorqueParameters in 2026
    magnetometer @95 :Hardware.SensorEventData;
    lightSensor @96 :Hardware.SensorEventData;
    temperatureSensor @97 :Hardware.SensorEventData;
    accelerometer @98 :Hardware.SensorEventData;
    gyroscope @99 :Hardware.SensorEventData;
    gyroscope2 @100 :Hardware.SensorEventData;
    accelerometer2 @101 :Hardware.SensorEventData;
    uiDebug @102 :Hardware.UIDebug;
    soundPressure @103 :Hardware.SoundPressure;
    navModelDEPRECATED @104 :Opaque;
    mapRenderState @105 :Driving.MapRenderState;
    uiPlanDEPRECATED @106 :Opaque;
    customReserved0 @107 :Opaque;     # @107..@116 and @136..@145: for forks; two are ours
    customReserved1 @108 :Opaque;
    customReserved2 @109 :Opaque;
    customReserved3 @110 :Opaque;
    customReserved4 @111 :Opaque;
    customReserved5 @112 :Opaque;
    customReserved6 @113 :Opaque;
    customReserved7 @114 :Opaque;
    customReserved8 @115 :Opaque;
    customReserved9 @116 :Opaque;
    livestreamRoadEncodeIdx @117 :EncodeIndex;  # livestreamNarrowRoadEncodeIdx in 2026
    livestreamWideRoadEncodeIdx @118 :EncodeIndex;
    livestreamDriverEncodeIdx @119 :EncodeIndex;  # livestreamCabinEncodeIdx in 2026
    livestreamRoadEncodeData @120 :EncodeData;  # livestreamNarrowRoadEncodeData in 2026
    livestreamWideRoadEncodeData @121 :EncodeData;
    livestreamDriverEncodeData @122 :EncodeData;  # livestreamCabinEncodeData in 2026
    temperatureSensor2 @123 :Hardware.SensorEventData;
    customReservedRawData0 @124 :Data;
    customReservedRawData1 @125 :Data;
    customReservedRawData2 @126 :Data;
    carOutput @127 :Car.CarOutput;
    drivingModelData @128 :DrivingModelData;
    livePose @129 :Driving.LivePose;  # deviceMotion in 2026
    selfdriveState @130 :Driving.SelfdriveState;
    liveTracks @131 :Car.RadarData;  # radarTracks in 2026
    driverAssistance @132 :Driving.DriverAssistance;
    alertDebug @133 :Hardware.DebugAlert;
    onroadEvents @134 :List(Driving.OnroadEvent);
    touch @135 :List(Hardware.Touch);
    customReserved10 @136 :Opaque;
    customReserved11 @137 :Opaque;
    customReserved12 @138 :Opaque;
    customReserved13 @139 :Opaque;
    customReserved14 @140 :Opaque;
    customReserved15 @141 :Opaque;
    customReserved16 @142 :Opaque;
    customReserved17 @143 :Opaque;
    dmonitoringmodeldHealth @144 :Health.ModeldHealth;  # customReserved18 of others
    modeldHealth @145 :Health.ModeldHealth;  # customReserved19 of others
    liveDelay @146 :LiveDelayData;    # lateralDelay in 2026
    rawAudioData @147 :Hardware.AudioData;
    bookmarkButton @148 :Hardware.UserBookmark;
    audioFeedback @149 :AudioFeedback;
    lateralManeuverPlan @150 :Driving.LateralManeuverPlan;
    driverMonitoringStateV2 @151 :DriverMonitoringState;  # driverMonitoringState in 2026
    chestnutState @152 :ChestnutState;
    chestnutGpuState @153 :ChestnutState;
    livestreamAudio @154 :Hardware.AudioData;
  }
}
